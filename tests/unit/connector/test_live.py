"""Live values through a real file, and through vLLM's own scheduler on a real configuration."""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connector.live import INTERVAL, LiveValues
from runtime.parameters import PARAMETERS, TUNABLES_FILE_ENV, Kind, ParameterError
from tests.unit.connector.test_scheduler import TURN_1, asked, decoded_turn, matched, scheduler, vllm_config

__all__ = ("vllm_config",)

DEFAULTS = {p.name: str(p.default).lower() if p.kind is Kind.FLAG else str(p.default) for p in PARAMETERS}


@dataclass
class Attributes:
    kv_recompute_threshold: int = 64
    decoder_kv_blocks_ttl: int = 480


class Node:
    """The file of a node, written as its agent does, and one engine's view of it."""

    def __init__(self, folder: Path, kv_role: str, **environ: str) -> None:
        self.file = folder / "tunables.json"
        self.now = 100.0
        self.engine = Attributes()
        self.write()
        self.live = LiveValues(self.engine, kv_role, {TUNABLES_FILE_ENV: str(self.file), **environ})

    def write(self, **texts: str) -> None:
        unfinished = self.file.with_name("new")
        unfinished.write_text(json.dumps(DEFAULTS | texts))
        unfinished.replace(self.file)

    def poll(self) -> Attributes:
        self.now += INTERVAL
        self.live.poll(self.now)
        return self.engine


@pytest.fixture(autouse=True)
def loggers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Levels, handlers and propagation as they were, and our lines in `caplog`."""
    each = [logging.getLogger("vllm"), logging.getLogger("connector")]
    before = [(one, one.level, list(one.handlers), one.propagate) for one in each]
    levels = [(handler, handler.level) for handler in each[0].handlers]
    for one in each:
        # As vLLM configures its own, with a handler that tests can look into.
        one.setLevel(logging.INFO)
        one.addHandler(caplog.handler)
        one.propagate = False
    yield
    for one, level, handlers, propagate in before:
        one.setLevel(level)
        one.handlers, one.propagate = handlers, propagate
    for handler, level in levels:
        handler.setLevel(level)


@pytest.mark.parametrize(
    ("kv_role", "expected"),
    [
        ("kv_producer", Attributes(10, 480)),
        ("kv_consumer", Attributes(64, 900)),
        ("kv_both", Attributes(10, 900)),
        (None, Attributes(10, 900)),
    ],
)
def test_each_role_takes_its_own(
    tmp_path: Path, kv_role: str, expected: Attributes, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, kv_role)
    assert node.poll() == Attributes()
    node.write(kv_recompute_threshold="10", decoder_kv_blocks_ttl="900", handle_ttl="20")
    assert node.poll() == expected
    lines = [record.getMessage() for record in caplog.records]
    changes = [line for line in lines if "->" in line]
    assert set(changes) <= {"kv_recompute_threshold 64 -> 10", "decoder_kv_blocks_ttl 480 -> 900"}
    assert len(changes) == (expected.kv_recompute_threshold == 10) + (expected.decoder_kv_blocks_ttl == 900)
    node.poll()
    assert len(caplog.records) == len(lines)


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    node = Node(tmp_path, "kv_producer")
    node.poll()
    node.write(kv_recompute_threshold="10")
    node.live.poll(node.now + INTERVAL / 2)
    assert node.engine.kv_recompute_threshold == 64
    assert node.poll().kv_recompute_threshold == 10


def test_without_a_file_nothing_happens() -> None:
    engine = Attributes()
    LiveValues(engine, "kv_producer", {}).poll(1e9)
    assert engine == Attributes()


def test_what_an_engine_was_started_with_gives_way_to_the_file(tmp_path: Path) -> None:
    node = Node(tmp_path, "kv_producer")
    node.engine.kv_recompute_threshold = 5
    assert node.poll().kv_recompute_threshold == 64


def test_a_bad_file_changes_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, "kv_producer")
    node.poll()
    node.write(kv_recompute_threshold="many")
    node.poll()
    node.poll()
    assert node.engine == Attributes()
    assert [r.getMessage() for r in caplog.records if "kv_recompute_threshold is 'many'" in r.getMessage()] != []
    assert len(caplog.records) == 1
    node.file.unlink()
    node.poll()
    node.write(kv_recompute_threshold="7")
    assert node.poll().kv_recompute_threshold == 7


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    node = Node(tmp_path, "kv_producer", KVR_KV_RECOMPUTE_THRESHOLD="33")
    node.write(kv_recompute_threshold="10")
    assert node.poll().kv_recompute_threshold == 33
    with pytest.raises(ParameterError, match="kv_recompute_threshold is 'x'"):
        Node(tmp_path, "kv_producer", KVR_KV_RECOMPUTE_THRESHOLD="x")


def test_the_log_level_reaches_vllm_and_us(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, "kv_consumer")
    theirs, ours = logging.getLogger("vllm"), logging.getLogger("connector.scheduler")
    for level in ("debug", "error", "info"):
        node.write(log_level=level)
        node.poll()
        number = getattr(logging, level.upper())
        assert theirs.getEffectiveLevel() == ours.getEffectiveLevel() == number
        assert {handler.level for handler in theirs.handlers} == {number}
        assert caplog.messages[-1].endswith(f"-> {level}")
    assert caplog.messages[-3:] == ["log_level info -> debug", "log_level debug -> error", "log_level error -> info"]


def test_our_lines_go_where_vllms_go(tmp_path: Path) -> None:
    logging.getLogger("connector").handlers.clear()
    Node(tmp_path, "kv_consumer")
    assert logging.getLogger("connector").handlers == logging.getLogger("vllm").handlers != []


def test_what_needs_a_restart_is_only_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, "kv_producer")
    node.poll()
    node.write(block_size="64", max_conversations="5")
    node.poll()
    node.write(block_size="64", max_conversations="6")
    node.poll()
    assert [line for line in caplog.messages if "->" in line] == [
        "block_size 32 -> 64 waits for a restart of this engine"
    ]


def test_a_changed_threshold_decides_the_next_request(
    vllm_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, "kv_both")
    node.write(kv_recompute_threshold="1000", decoder_kv_blocks_ttl="6", handle_ttl="5")
    monkeypatch.setenv(TUNABLES_FILE_ENV, os.fspath(node.file))
    monkeypatch.setattr(vllm_config.kv_transfer_config, "kv_role", "kv_both")
    prefill, decode = scheduler(vllm_config, "p"), scheduler(vllm_config, "d")
    assert prefill.kv_recompute_threshold == 0 and decode.decoder_kv_blocks_ttl == 480
    handle = decoded_turn(decode)
    assert decode.decoder_kv_blocks_ttl == 6
    assert matched(prefill, asked(prefill, [*TURN_1, 7], dict(handle))) == 0
    node.write(kv_recompute_threshold="0")
    prefill._live._due = 0.0
    again = dict(handle, remote_request_id="turn-1b")
    assert matched(prefill, asked(prefill, [*TURN_1, 7], again, name="turn-2b")) == 128
