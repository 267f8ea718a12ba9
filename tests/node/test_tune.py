"""The command against a real Parameter Store emulator, as its users run it."""

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from runtime.parameters import BY_NAME, PARAMETERS, Tunables, parse_all
from scripts import tune
from scripts.tune import Exit, in_order, written
from stacks.pattern import allowed_pattern
from stacks.tunables import description, value_text
from tests.aws import CREDENTIALS, Answer, Aws, Call, free_port, front

ROOT = Path(__file__).parents[2]
_numbers = count()


@pytest.fixture
def prefix(aws: Aws) -> str:
    """A deployment's parameters, as the stack makes them."""
    path = f"/kv-{next(_numbers)}"
    for p in PARAMETERS:
        pattern = {"AllowedPattern": found} if (found := allowed_pattern(p)) else {}
        aws.client("ssm").put_parameter(
            Name=f"{path}/{p.name}", Value=value_text(p), Type="String", Description=description(p), Tier="Standard",
            Tags=[{"Key": "kv-roundtrip:apply", "Value": p.apply.value}], **pattern,
        )  # fmt: skip
    return path


def run(capsys: pytest.CaptureFixture[str], url: str, prefix: str, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = tune.main([*arguments, "--prefix", prefix, "--region", "us-east-2", "--endpoint-url", url])
    said = capsys.readouterr()
    return code, said.out, said.err


def texts(aws: Aws, prefix: str) -> dict[str, str]:
    pages = aws.client("ssm").get_paginator("get_parameters_by_path").paginate(Path=prefix)
    return {p["Name"].rpartition("/")[2]: p["Value"] for page in pages for p in page["Parameters"]}


def test_list_shows_all_and_marks_what_differs(aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    aws.client("ssm").put_parameter(Name=f"{prefix}/max_attempts", Value="3", Overwrite=True)
    aws.client("ssm").delete_parameter(Name=f"{prefix}/block_size")
    code, out, _ = run(capsys, aws.url, prefix, "list")
    rows = {line.lstrip("* ").split()[0]: line for line in out.splitlines() if line}
    assert code == Exit.DONE and set(BY_NAME) <= set(rows)
    assert rows["max_attempts"].split() == ["*", "max_attempts", "3", "2", "attempts", "1", "to", "5", "live", "router"]
    assert rows["block_size"].startswith("*") and "(missing)" in rows["block_size"] and "restart" in rows["block_size"]
    assert rows["handle_ttl"].startswith("   handle_ttl") and "450 " in rows["handle_ttl"]


def test_get_prints_the_value_alone(aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, aws.url, prefix, "get", "handle_ttl") == (Exit.DONE, "450\n", "")


def test_set_says_what_happens_and_keeps_what_else_a_parameter_has(
    aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ssm = aws.client("ssm")

    def described(name: str) -> dict[str, object]:
        (found,) = ssm.describe_parameters(ParameterFilters=[{"Key": "Name", "Values": [f"{prefix}/{name}"]}])[
            "Parameters"
        ]
        return {key: found.get(key) for key in ("AllowedPattern", "Description", "Type", "Tier", "DataType")}

    before = described("handle_ttl")
    assert before["AllowedPattern"] and before["Description"]
    with front(aws) as watched:
        code, out, _ = run(capsys, watched.url, prefix, "set", "handle_ttl=300.50", "block_size=64", "max_attempts=2")
        # moto keeps them by itself; AWS does not say, so each write carries them.
        assert all(
            b"AllowedPattern" in call.body and b"Description" in call.body for call in watched.of("PutParameter")
        )
        assert len(watched.of("PutParameter")) == 2
    assert code == Exit.DONE
    assert "handle_ttl 450 -> 300.5 (live on router within about 10 s)" in out
    assert "block_size 32 -> 64 (waits for a restart of prefill, decode)" in out
    assert "max_attempts is 2 already" in out
    assert texts(aws, prefix)["handle_ttl"] == "300.5" and described("handle_ttl") == before
    assert ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=f"{prefix}/handle_ttl")["TagList"]


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["handle_ttl=abc"], "handle_ttl is 'abc', expected number"),
        (["block_size=1e9"], "block_size is '1e9', expected integer"),
        (["block_size=-5"], "block_size is -5 tokens. hint: set 8 to 1024"),
        (["block_size="], "block_size is ''"),
        (["max_attempts=3", "log_level=loud", "drain_timeout=-1"], "log_level is 'loud'"),
        (["max_attempts=3", "log_level=loud", "drain_timeout=-1"], "drain_timeout is -1.0 seconds"),
        (["handle_ttl=480"], "handle_ttl 480 s is not below decoder_kv_blocks_ttl 480 s"),
        (["max_attempts=3", "decoder_kv_blocks_ttl=450"], "hint: set handle_ttl below 450"),
        (["handel_ttl=4"], "no tunable is called 'handel_ttl'. hint: did you mean handle_ttl"),
        (["handle-ttl=4"], "did you mean handle_ttl"),
        (["zzz=4"], "hint: `list` shows all"),
        (["max_attempts=3", "max_attempts=4"], "max_attempts is given twice"),
        (["capacity_block_end=tomorrow"], "none or a time in UTC like"),
    ],
)
def test_a_wrong_set_is_refused_whole(
    aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str], assignments: list[str], said: str
) -> None:
    before = texts(aws, prefix)
    code, _, err = run(capsys, aws.url, prefix, "set", *assignments)
    assert code == Exit.FAILED and err.startswith("error: ") and said in err
    assert texts(aws, prefix) == before


def test_two_values_that_fit_only_together_are_written_in_the_order_that_never_conflicts(
    aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with front(aws) as watched:
        seen: list[dict[str, str]] = []
        watched.rules.append(lambda call: seen.append(texts(aws, prefix)) if call.action == "PutParameter" else None)
        assert run(capsys, watched.url, prefix, "set", "handle_ttl=900", "decoder_kv_blocks_ttl=1000")[0] == Exit.DONE
        assert run(capsys, watched.url, prefix, "set", "decoder_kv_blocks_ttl=100", "handle_ttl=90")[0] == Exit.DONE
    for state in (*seen, texts(aws, prefix)):
        Tunables.of(parse_all(state))
    assert len(seen) == 4


def test_an_order_is_found_or_the_given_one_stays() -> None:
    now = {"handle_ttl": "450", "decoder_kv_blocks_ttl": "480"}
    assert list(in_order(now, {"handle_ttl": "900", "decoder_kv_blocks_ttl": "1000"})) == [
        "decoder_kv_blocks_ttl",
        "handle_ttl",
    ]
    broken = {"handle_ttl": "450", "decoder_kv_blocks_ttl": "100"}
    assert list(in_order(broken, {"max_attempts": "3", "handle_ttl": "50"})) == ["handle_ttl", "max_attempts"]


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda p: p.name)
def test_what_is_written_reads_as_the_same(parameter: tune.Parameter) -> None:
    for value in (parameter.default, *parameter.choices):
        assert parameter.parse(written(parameter, value)) == value
    assert written(parameter, parameter.default) == value_text(parameter)


def test_a_write_that_fails_says_what_was_written(aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    denied = b'{"__type":"AccessDeniedException","message":"not authorized to perform: ssm:PutParameter"}'

    def second(call: Call) -> Answer | None:
        return (
            Answer(400, denied, "application/json")
            if call.action == "PutParameter" and b"log_level" in call.body
            else None
        )

    with front(aws) as watched:
        watched.rules.append(second)
        code, _, err = run(capsys, watched.url, prefix, "set", "max_attempts=3", "log_level=debug")
    assert code == Exit.FAILED and "log_level could not be written; max_attempts written before" in err
    assert "AccessDeniedException" in err and "hint: the identity lacks" in err


def test_a_deployment_that_is_not_there(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["list"], ["get", "handle_ttl"], ["set", "handle_ttl=3"]):
        code, _, err = run(capsys, aws.url, "/nothing", *verb)
        assert code == Exit.FAILED and "no tunable below /nothing. hint: give the deployment's --prefix" in err


@pytest.mark.parametrize(
    "arguments",
    [["set"], ["set", "handle_ttl"], ["frob"], [], ["get"], ["list", "--prefix", "kv"], ["watch", "--interval", "0"]],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tune.main(arguments)
    assert ended.value.code == Exit.USAGE


def child(*arguments: str, **changed: str | None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **CREDENTIALS, **{name: text for name, text in changed.items() if text is not None}}
    for name in (name for name, text in changed.items() if text is None):
        environment.pop(name, None)
    command = [sys.executable, "-m", "scripts.tune", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, env=environment)


NO_KEYS = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}


@pytest.mark.parametrize(
    ("arguments", "changed", "said"),
    [
        (["list", "--region", "us-east-2"], NO_KEYS, "no AWS credentials. hint: "),
        (["list"], {"AWS_DEFAULT_REGION": None, "AWS_REGION": None}, "no AWS region. hint: give --region"),
        (["list", "--endpoint-url", f"http://127.0.0.1:{free_port()}"], {}, "hint: check the route"),
        (["list", "--endpoint-url", "nowhere"], {}, "Invalid endpoint: nowhere"),
        (["list"], {"AWS_PROFILE": "unknown"}, "unknown"),
    ],
)
def test_an_environment_that_is_not_set_up_gets_one_line(
    arguments: list[str], changed: dict[str, str | None], said: str
) -> None:
    done = child(*arguments, **changed)
    assert done.returncode == Exit.FAILED and said in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_denied_gets_a_hint(aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    denied = Answer(400, b'{"__type":"AccessDeniedException","message":"no"}', "application/json")
    with front(aws) as watched:
        watched.rules.append(lambda call: denied)
        code, _, err = run(capsys, watched.url, prefix, "list")
    assert code == Exit.FAILED and "GetParametersByPath: AccessDeniedException: no. hint: the identity lacks" in err


def test_a_reader_that_leaves_early_sees_no_fault(aws: Aws, prefix: str) -> None:
    command = f"{sys.executable} -m scripts.tune list --prefix {prefix} --endpoint-url {aws.url} | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_watch_prints_changes_until_ctrl_c(aws: Aws, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "scripts.tune",
        "watch",
        "--interval",
        "0.1",
        "--prefix",
        prefix,
        "--endpoint-url",
        aws.url,
    ]
    watching = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert watching.stdout is not None
        assert f"watching {len(PARAMETERS)} tunables" in watching.stdout.readline()
        run(capsys, aws.url, prefix, "set", "handle_ttl=300")
        line = watching.stdout.readline()
        assert line[2] == line[5] == ":" and line.endswith(" handle_ttl 450 -> 300 (live)\n")
        time.sleep(0.3)
        watching.send_signal(signal.SIGINT)
        rest, err = watching.communicate(timeout=20)
        assert (watching.returncode, rest, err) == (Exit.DONE, "", "")
    finally:
        watching.kill()
        watching.communicate(timeout=10)
