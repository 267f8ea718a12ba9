"""Tunables that change in the node's file while the router runs."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router import live as live_module
from router.discovery import Static
from router.live import Live
from runtime.parameters import BY_NAME, PARAMETERS, TUNABLES_FILE_ENV, Apply, Reader
from tests.aws import free_port
from tests.fakes.engine import FakeEngine, Request, Wire
from tests.unit.router.conftest import Client, Stage, Start, System
from tests.unit.router.test_turn import CHAT, answers, sent_handles


class Values:
    """The file as a node's agent writes it: text, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **values: Any) -> None:
        self.put(json.dumps({name: str(value) for name, value in values.items()}))

    def put(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Values:
    monkeypatch.setattr(live_module, "_INTERVAL", 0.02)
    return Values(tmp_path / "tunables.json")


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == event]


async def hangs(request: Request, _: Wire) -> None:
    await request.closed.wait()


async def changes(system: System, name: str, number: int = 1) -> None:
    """Until so many changes of this tunable were taken over, by the router's own count."""
    async with asyncio.timeout(20):
        while await system.client.metric("kvr_tunables_changed_total", tunable=name) < number:
            await asyncio.sleep(0.01)


async def attempts(system: System) -> int:
    """How often a turn is tried whose decode fails."""
    before = len(system.decode[0].requests)
    assert (await system.client.chat()).status == 502
    return len(system.decode[0].requests) - before


async def test_a_changed_value_counts_for_the_next_turn_and_is_logged_with_the_old_one(
    start: Start, values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    values.write(max_attempts=1)
    system = await start(file=values.path)
    system.decode[0].script = lambda _, wire: answers(wire, 500, {})
    assert await attempts(system) == 1
    values.write(max_attempts=4)
    await changes(system, "max_attempts")
    assert await attempts(system) == 4
    assert told(caplog, "tunables changed") == [{"tunables": {"max_attempts": {"old": 1, "new": 4}}}]


async def test_a_shorter_handle_ttl_holds_for_handles_already_stored(start: Start, values: Values) -> None:
    values.write(handle_ttl=400)
    system = await start(file=values.path)
    await system.client.chat("c")
    values.write(handle_ttl=0.2)
    await changes(system, "handle_ttl")
    await asyncio.sleep(0.25)
    await system.client.chat("c")
    assert sent_handles(system) == [None, None]
    assert await system.client.metric("kvr_handles_total", fate="expired") == 1


async def test_a_flag_goes_before_the_file(start: Start, values: Values, caplog: pytest.LogCaptureFixture) -> None:
    values.write(max_attempts=4, prefill_timeout=200)
    system = await start(file=values.path, max_attempts=1)
    system.decode[0].script = lambda _, wire: answers(wire, 500, {})
    assert await attempts(system) == 1
    values.write(max_attempts=5, prefill_timeout=100)
    await changes(system, "prefill_timeout")
    assert await attempts(system) == 1
    (change,) = told(caplog, "tunables changed")
    assert list(change["tunables"]) == ["prefill_timeout"]


@pytest.mark.parametrize("text", ["abc", "-5", "1e9", "", "9"])
async def test_rep_33_a_bad_value_keeps_the_old_one_and_is_named_once(
    start: Start, values: Values, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    values.write(max_attempts=1)
    system = await start(file=values.path)
    system.decode[0].script = lambda _, wire: answers(wire, 500, {})
    values.write(max_attempts=text, prefill_timeout=100)
    await system.until(lambda: bool(told(caplog, "tunables file not taken, values stay")))
    await asyncio.sleep(0.1)
    (fault,) = told(caplog, "tunables file not taken, values stay")
    assert "max_attempts" in fault["reason"] and "hint" in fault["reason"]
    assert await attempts(system) == 1
    values.write(max_attempts=2)
    await changes(system, "max_attempts")
    assert await attempts(system) == 2


async def test_values_that_conflict_keep_the_old_ones(
    start: Start, values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    system = await start(file=values.path)
    for conflict in ({"decoder_kv_blocks_ttl": 100}, {"handle_ttl": 600, "round_trip": "false"}):
        caplog.clear()
        values.write(**conflict)
        await system.until(lambda: bool(told(caplog, "tunables file not taken, values stay")))
        (fault,) = told(caplog, "tunables file not taken, values stay")
        assert "set handle_ttl below" in fault["reason"]
    values.write(decoder_kv_blocks_ttl=700, handle_ttl=600)
    await changes(system, "handle_ttl")


async def test_what_needs_a_restart_waits_and_is_logged_once(
    start: Start, values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    values.write()
    system = await start(file=values.path)
    values.write(round_trip="false", block_size=64)
    event = "tunables wait for a restart"
    await system.until(lambda: bool(told(caplog, event)))
    values.write(round_trip="false", max_attempts=3)
    await changes(system, "max_attempts")
    assert told(caplog, event) == [{"tunables": {"round_trip": {"running": True, "set": False}}}]
    for _ in range(2):
        await system.client.chat("c")
    assert sent_handles(system) == [None, "e1"]


async def test_at_start_what_needs_a_restart_counts_too(start: Start, values: Values) -> None:
    values.write(round_trip="false")
    system = await start(file=values.path)
    for _ in range(2):
        await system.client.chat("c")
    assert sent_handles(system) == [None, None]


async def test_without_the_file_a_router_starts_with_its_defaults_and_takes_one_that_comes(
    start: Start, values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    system = await start(file=values.path, max_attempts=1)
    (fault,) = told(caplog, "tunables file not taken, values stay")
    assert str(values.path) in fault["reason"]
    values.write(max_body_bytes=2000)
    await changes(system, "max_body_bytes")
    assert (await system.client.chat(padding="x" * 3000)).status == 413


async def test_time_outs_are_those_of_now(start: Start, values: Values) -> None:
    values.write()
    system = await start(file=values.path, max_attempts=1)
    system.prefill[0].script = hangs
    values.write(prefill_timeout=0.2)
    await changes(system, "prefill_timeout")
    async with asyncio.timeout(20):
        assert (await system.client.chat()).status == 502
    assert not system.decode[0].requests

    system.decode[0].script = hangs
    system.prefill[0].script = lambda _, wire: answers(wire, 200, {"choices": []})
    values.write(decode_idle_timeout=0.2)
    await changes(system, "decode_idle_timeout")
    async with asyncio.timeout(20):
        assert (await system.client.chat()).status == 502
    assert len(system.decode[0].requests) == 1


async def test_a_shorter_health_interval_does_not_wait_for_the_longer_one(stage: Stage, values: Values) -> None:
    prefill, decode = await stage.prefill(), await stage.decode()
    values.write(health_interval=60)
    live = Live({}, values.path)
    live.load()
    system = await stage.router(Static([prefill.url], [decode.url]), [prefill], [decode], live)
    await system.settle()
    await decode.stop()
    values.write(health_interval=0.05)
    async with asyncio.timeout(20):
        await system.until(lambda: not system.router.nodes.decode[0].healthy)


def test_every_live_tunable_of_the_router_is_taken_over(values: Values) -> None:
    fresh = {"handle_ttl": 99, "decoder_kv_blocks_ttl": 100, "log_level": "debug", "max_attempts": 3}
    expected = {p.name for p in PARAMETERS if Reader.ROUTER in p.readers and p.apply is Apply.LIVE}
    fresh |= {name: int(BY_NAME[name].minimum) + 2 for name in expected - fresh.keys()} | {"max_body_bytes": 4096}
    values.write()
    live = Live({}, values.path)
    live.load()
    values.write(**fresh)
    assert set(live.poll()) == expected
    for name in expected:
        assert live.text(name) == str(BY_NAME[name].parse(str(fresh[name])))
    assert live.poll() == ()


# The process
class Process:
    """`python -m router` with the node's file, its log lines read as they come."""

    def __init__(self, prefill: FakeEngine, decode: FakeEngine, path: Path) -> None:
        self.prefill = prefill
        self.port = free_port()
        self.argv = ["--prefill", prefill.url, "--decode", decode.url, "--port", str(self.port)]
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self.client = Client(self.port)

    async def start(self, *more: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", *self.argv, *more,
            stderr=asyncio.subprocess.PIPE, env={TUNABLES_FILE_ENV: str(self.path)},
        )  # fmt: skip
        self.reader = asyncio.ensure_future(self._read())
        await self.until(self.client.is_ready)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not await holds():
                await asyncio.sleep(0.05)

    async def logged(self, name: str, number: int = 1) -> None:
        async with asyncio.timeout(20):
            while len(self.events(name)) < number:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.reader


@pytest.fixture
async def process(stage: Stage, tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(await stage.prefill(), await stage.decode(), tmp_path / "tunables.json")
    yield made
    await made.stop()


async def test_a_running_router_changes_its_log_level_and_its_drain(process: Process) -> None:
    values = Values(process.path)
    values.write(log_level="warning", drain_timeout=0)
    await process.start()
    await process.client.chat()
    values.write(log_level="info", drain_timeout=30)
    await process.logged("tunables changed")
    await process.client.chat()
    await process.logged("turn")
    assert len(process.events("turn")) == 1
    (change,) = process.events("tunables changed")
    assert change["tunables"]["log_level"] == {"old": "warning", "new": "info"}

    values.write(log_level="error", drain_timeout=30)
    await process.logged("tunables changed", 2)
    await process.client.chat()
    process.prefill.script = hangs
    _, writer = await process.client.open("/v1/chat/completions", CHAT)
    async with asyncio.timeout(20):
        while len(process.prefill.requests) < 4:
            await asyncio.sleep(0.01)
    process.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    assert process.process.returncode is None  # with its first drain_timeout it would be gone
    values.write(log_level="error", drain_timeout=0.1)
    assert await asyncio.wait_for(process.process.wait(), 20) == 0
    await process.reader
    assert len(process.events("turn")) == 1
    writer.close()
