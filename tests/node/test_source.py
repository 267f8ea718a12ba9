"""Tunables out of a real Parameter Store emulator: two pages, throttling, bad values, values that change meanwhile."""

import json
import logging
import threading
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from runtime.parameters import PARAMETERS, Kind, Parameter, TunablesFile
from runtime.source import Source, SourceError, client, merge, secret
from tests.aws import Answer, Aws, Call, free_port, front, throttle

_numbers = count()
DEFAULTS = {p.name: str(p.default).lower() if p.kind is Kind.FLAG else str(p.default) for p in PARAMETERS}


@pytest.fixture
def path() -> str:
    return f"/kv-{next(_numbers)}"


def put(aws: Aws, path: str, **texts: str) -> None:
    ssm = aws.client("ssm")
    for name, text in texts.items():
        ssm.put_parameter(Name=f"{path}/{name}", Value=text, Type="String", Overwrite=True)


def source(url: str, path: str, folder: Path) -> Source:
    return Source(client("ssm", "us-east-2", url), path, folder / "tunables.json")


def written(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / "tunables.json").read_text()))


def test_rep_33_all_pages_are_read(aws: Aws, path: str, tmp_path: Path) -> None:
    assert len(DEFAULTS) > 15
    put(aws, path, **DEFAULTS)
    put(aws, f"{path}/deeper", block_size="64")
    with front(aws) as before:
        outcome = source(before.url, path, tmp_path).poll()
        # ten parameters a page, and two reads that agree
        assert len(before.of("GetParametersByPath")) == 2 * -(-len(DEFAULTS) // 10)
    assert written(tmp_path) == DEFAULTS and outcome.faults == () and set(outcome.changed) == set(DEFAULTS)
    file = TunablesFile(tmp_path / "tunables.json", {})
    file.poll()
    assert not file.fault


def test_rep_33_fifteen_parameters_are_two_pages(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **dict(list(DEFAULTS.items())[:15]))
    outcome = source(aws.url, path, tmp_path).poll()
    assert len(written(tmp_path)) == 15
    assert len(outcome.faults) == len(DEFAULTS) - 15 and "is missing; the default" in outcome.faults[0]


def test_rep_33_three_throttled_calls_are_tried_again_with_pauses(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS)
    with front(aws) as before:
        before.rules.append(throttle(3, "GetParametersByPath"))
        source(before.url, path, tmp_path).poll()
        times = [call.at for call in before.of("GetParametersByPath")][:4]
    pauses = [after - earlier for earlier, after in pairwise(times)]
    assert written(tmp_path) == DEFAULTS
    assert max(pauses) > 0.05 and len({round(pause, 2) for pause in pauses}) > 1


def test_a_steady_node_reads_once_a_poll_and_leaves_the_file_alone(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS)
    with front(aws) as before:
        node = source(before.url, path, tmp_path)
        node.poll()
        stat = (tmp_path / "tunables.json").stat()
        before.calls.clear()
        assert node.poll().changed == {}
        assert len(before.of("GetParametersByPath")) == -(-len(DEFAULTS) // 10)
    assert (tmp_path / "tunables.json").stat() == stat
    assert stat.st_mode & 0o777 == 0o644 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("bad", ["abc", "-5", "1e9", " "])
def test_rep_33_a_bad_value_is_refused_by_name_and_the_others_apply(
    aws: Aws, path: str, tmp_path: Path, bad: str
) -> None:
    put(aws, path, **DEFAULTS | {"kv_recompute_threshold": "100"})
    node = source(aws.url, path, tmp_path)
    node.poll()
    put(aws, path, kv_recompute_threshold=bad, max_attempts="3")
    outcome = node.poll()
    assert written(tmp_path) == DEFAULTS | {"kv_recompute_threshold": "100", "max_attempts": "3"}
    assert outcome.changed == {"max_attempts": ("2", "3")}
    (fault,) = outcome.faults
    assert fault.startswith("kv_recompute_threshold is ") and "100 is kept" in fault


@pytest.mark.parametrize("parameter", [p for p in PARAMETERS if p.kind is Kind.INTEGER], ids=lambda p: p.name)
def test_rep_33_for_every_integer(parameter: Parameter) -> None:
    for bad in ("abc", "-5", "1e9", "", "99999999999"):
        merged = merge(DEFAULTS, DEFAULTS | {parameter.name: bad})
        assert merged.texts == DEFAULTS and len(merged.faults) == 1 and parameter.name in merged.faults[0]


def test_a_value_that_is_deleted_stays(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS)
    node = source(aws.url, path, tmp_path)
    node.poll()
    aws.client("ssm").delete_parameter(Name=f"{path}/block_size")
    (fault,) = node.poll().faults
    assert fault.startswith("block_size is missing; 32 is kept") and written(tmp_path) == DEFAULTS


def test_values_that_conflict_keep_the_old_set(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS)
    node = source(aws.url, path, tmp_path)
    node.poll()
    put(aws, path, handle_ttl="480", max_attempts="3")
    outcome = node.poll()
    assert outcome.changed == {} and written(tmp_path) == DEFAULTS
    assert "the old set is kept: handle_ttl 480 s is not below decoder_kv_blocks_ttl 480 s" in outcome.faults[0]
    put(aws, path, decoder_kv_blocks_ttl="500")
    assert set(node.poll().changed) == {"handle_ttl", "max_attempts", "decoder_kv_blocks_ttl"}


def test_values_that_conflict_at_first_are_an_error(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS | {"handle_ttl": "480"})
    with pytest.raises(SourceError, match=r"conflict: handle_ttl.*hint"):
        source(aws.url, path, tmp_path).poll()
    assert not (tmp_path / "tunables.json").exists()


def test_rep_33_nothing_below_the_path_is_an_error(aws: Aws, path: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"no tunable below {path}\. hint: deploy"):
        source(aws.url, path, tmp_path).poll()


def test_rep_33_an_unreachable_store_is_an_error_and_the_old_set_stays(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS)
    source(aws.url, path, tmp_path).poll()
    with pytest.raises(SourceError, match=r"can't be read:.*hint: check the route"):
        source(f"http://127.0.0.1:{free_port()}", path, tmp_path).poll()
    assert written(tmp_path) == DEFAULTS


def test_the_last_known_good_set_outlives_the_agent(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS | {"max_attempts": "4"})
    source(aws.url, path, tmp_path).poll()
    put(aws, path, max_attempts="many")
    assert "4 is kept" in source(aws.url, path, tmp_path).poll().faults[0]


def test_rep_33_a_value_that_changes_between_two_pages_gives_no_mixed_set(aws: Aws, path: str, tmp_path: Path) -> None:
    """The writer changes both, on different pages, after the first page of the first read was answered."""
    put(aws, path, **DEFAULTS)
    with front(aws) as before:

        def change(call: Call) -> Answer | None:
            if call.action == "GetParametersByPath" and b"NextToken" in call.body and len(before.calls) == 2:
                put(aws, path, block_size="64", nixl_progress_delay="500")
            return None

        before.rules.append(change)
        source(before.url, path, tmp_path).poll()
    assert written(tmp_path) == DEFAULTS | {"block_size": "64", "nixl_progress_delay": "500"}


def test_rep_33_two_nodes_and_a_writer_end_with_one_consistent_set(aws: Aws, path: str, tmp_path: Path) -> None:
    put(aws, path, **DEFAULTS)
    stop = threading.Event()
    broken: list[str] = []

    def node(folder: Path) -> None:
        reader, file = source(aws.url, path, folder), TunablesFile(folder / "tunables.json", {})
        last = False
        while not last:
            last = stop.is_set()
            try:
                reader.poll()
            except SourceError as error:
                if "kept changing" not in str(error) or last:
                    broken.append(str(error))
            file.poll()
            if file.fault and folder.exists():
                broken.append(file.fault)

    nodes = [tmp_path / "one", tmp_path / "two"]
    threads = [threading.Thread(target=node, args=(folder,)) for folder in nodes]
    for thread in threads:
        thread.start()
    for step in range(6):
        # The order keeps every state between the two writes free of conflicts.
        put(aws, path, decoder_kv_blocks_ttl=str(500 + 50 * step), handle_ttl=str(490 + 50 * step), block_size="64")
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not [fault for fault in broken if "No such file" not in fault]
    end = DEFAULTS | {"decoder_kv_blocks_ttl": "750", "handle_ttl": "740", "block_size": "64"}
    assert [written(folder) for folder in nodes] == [end, end]


def store_secret(aws: Aws, name: str, kind: str, value: str = "tok-placeholder-123") -> Any:
    return aws.client("ssm").put_parameter(Name=name, Value=value, Type=kind)


def test_rep_31_a_secret_is_decrypted_and_never_logged(aws: Aws, path: str, caplog: pytest.LogCaptureFixture) -> None:
    store_secret(aws, f"{path}/hub-token", "SecureString")
    with caplog.at_level(logging.INFO):
        assert secret(client("ssm", "us-east-2", aws.url), f"{path}/hub-token") == "tok-placeholder-123"
    assert "tok-placeholder" not in caplog.text


def test_rep_31_a_token_in_clear_text_is_refused(aws: Aws, path: str) -> None:
    store_secret(aws, f"{path}/hub-token", "String")
    with pytest.raises(SourceError, match=r"is a String.*SecureString") as raised:
        secret(client("ssm", "us-east-2", aws.url), f"{path}/hub-token")
    assert "tok-placeholder" not in str(raised.value)


def test_a_secret_that_is_not_there(aws: Aws, path: str) -> None:
    with pytest.raises(SourceError, match=rf"{path}/none can't be read: GetParameter: ParameterNotFound.*hint"):
        secret(client("ssm", "us-east-2", aws.url), f"{path}/none")
