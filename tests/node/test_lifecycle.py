"""Hooks and tags of an instance, against moto; Auto Scaling's lifecycle actions, which moto lacks, are a front's."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.lifecycle import Instance, NotReady, abandon, probe, ready
from runtime.metadata import Metadata
from runtime.node import NodeConfig
from tests.aws import Answer, Aws, Call, Front, LifecycleHooks, free_port, front, launch, node, tags
from tests.fakes.metadata import FakeMetadata, serving, usual
from tests.hosts.account import Activities, suspended
from tests.node.systemctl import says
from tests.unit.scripts.server import serving as answering

ROOT = Path(__file__).parents[2]
HOOK = "kv-decode-launch"


@dataclass
class Site:
    """An instance whose launch hook waits."""

    aws: Aws
    front: Front
    hooks: LifecycleHooks
    metadata: FakeMetadata
    instance: str

    def node(self, port: int, **given: object) -> NodeConfig:
        return node(self.front.url, self.metadata.url, engine_port=port, **given)

    @property
    def state(self) -> str | None:
        return tags(self.aws, self.instance).get("kv-roundtrip:state")


@pytest.fixture
def site(aws: Aws) -> Iterator[Site]:
    instance = launch(aws)
    hooks = LifecycleHooks((instance, HOOK))
    with front(aws) as before, serving(usual(instance, "127.0.0.1")) as metadata:
        before.rules.append(hooks)
        yield Site(aws, before, hooks, metadata, instance)


def run(site: Site, config: NodeConfig, folder: Path, *arguments: str) -> tuple[int, str]:
    file = folder / "node.json"
    file.write_text(json.dumps(dataclasses.asdict(config)))
    done = subprocess.run(
        [sys.executable, "-m", "runtime.lifecycle", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=90, env={**os.environ, "KVR_NODE_CONFIG": str(file)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_an_engine_that_answers_is_continued_and_tagged(site: Site, tmp_path: Path) -> None:
    with answering({"/health": [(503, ""), (200, "")]}) as url:
        code, said = run(site, site.node(port_of(url)), tmp_path, "ready")
    assert (code, site.hooks.completed) == (0, [(site.instance, HOOK, "CONTINUE")])
    assert site.state == "serving" and "CONTINUE" in said
    (call,) = site.front.of("CompleteLifecycleAction")
    assert call.form["AutoScalingGroupName"] == "kv-decode"


def test_a_router_is_asked_at_its_own_port(site: Site, tmp_path: Path) -> None:
    with answering({"/health": [(200, "")]}) as url:
        config = site.node(1, role="router", router_port=port_of(url))
        assert run(site, config, tmp_path, "ready")[0] == 0


def test_after_a_reboot_no_hook_waits_and_that_is_said(site: Site, tmp_path: Path) -> None:
    site.hooks.pending.clear()
    with answering({"/health": [(200, "")]}) as url:
        code, said = run(site, site.node(port_of(url)), tmp_path, "ready")
    assert code == 0 and "in service before" in said and site.state == "serving"


def test_heartbeats_until_it_answers_and_a_failing_one_is_no_end(site: Site) -> None:
    answers = {"/health": [(503, "")]}
    left = [1]

    def fault(call: Call) -> Answer | None:
        if call.action == "RecordLifecycleActionHeartbeat" and left[0]:
            left[0] -= 1
            return Answer(403, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
        return None

    site.front.rules.insert(0, fault)
    with answering(answers) as url:
        config = site.node(port_of(url))
        instance = Instance(config, Metadata(config.metadata_url))
        waiting = threading.Thread(target=ready, args=(config, instance, 0.1))
        waiting.start()
        deadline = time.monotonic() + 20
        while len(site.front.of("RecordLifecycleActionHeartbeat")) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not site.hooks.completed
        answers["/health"] = [(200, "")]
        waiting.join(20)
    assert not waiting.is_alive() and site.hooks.completed == [(site.instance, HOOK, "CONTINUE")]


def test_over_its_budget_nothing_is_completed_and_the_reason_is_said(site: Site, tmp_path: Path) -> None:
    config = site.node(free_port(), load_budget_s=1)
    with pytest.raises(NotReady, match=r"not ready after \d+ s: .*refused.*hint:.*load_budget_s"):
        ready(config, Instance(config, Metadata(config.metadata_url)))
    code, said = run(site, config, tmp_path, "ready")
    assert code == 1 and "not ready" in said and not site.hooks.completed and site.state is None


def test_what_is_no_http_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        said: list[str | None] = []
        asking = threading.Thread(
            target=lambda: said.append(probe(f"http://127.0.0.1:{server.getsockname()[1]}/health"))
        )
        asking.start()
        connection, _ = server.accept()
        connection.recv(1000)
        connection.sendall(b"SSH-2.0-OpenSSH\r\n")
        connection.close()
        asking.join(10)
    assert said and said[0] and "SSH-2.0" in said[0]


def test_abandon_completes_the_hook_and_fails(site: Site, tmp_path: Path) -> None:
    code, said = run(site, site.node(1), tmp_path, "abandon", "--reason", "the weights did not come")
    assert (code, site.hooks.completed) == (1, [(site.instance, HOOK, "ABANDON")])
    assert "the weights did not come" in said and not site.front.of("SignalResource")


NOT_WAITING = b"""<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code>
<Message>Stack kv is in CREATE_COMPLETE state and cannot be signaled</Message></Error></ErrorResponse>"""
SIGNALLED = (
    b"<SignalResourceResponse><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></SignalResourceResponse>"
)


@pytest.mark.parametrize(
    ("what", "status", "answer", "code", "told"),
    [
        ("ready", "SUCCESS", Answer(200, SIGNALLED), 0, "told of success"),
        ("ready", "SUCCESS", Answer(400, NOT_WAITING), 0, "stack: none was waiting"),
        (
            "ready",
            "SUCCESS",
            Answer(403, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"),
            1,
            "hint",
        ),
        ("abandon", "FAILURE", Answer(200, SIGNALLED), 1, "told of failure"),
    ],
)
def test_the_stack_that_waits_is_told(
    site: Site, tmp_path: Path, what: str, status: str, answer: Answer, code: int, told: str
) -> None:
    site.front.rules.insert(0, lambda call: answer if call.action == "SignalResource" else None)
    with answering({"/health": [(200, "")]}) as url:
        config = site.node(port_of(url), stack="kv", group_resource="GroupABC")
        ended, said = run(site, config, tmp_path, what)
    (call,) = site.front.of("SignalResource")
    assert (ended, call.form["UniqueId"], call.form["Status"]) == (code, site.instance, status)
    assert (call.form["StackName"], call.form["LogicalResourceId"]) == ("kv", "GroupABC")
    assert told in said and site.hooks.completed


def test_abandon_twice_says_so_and_fails(site: Site, tmp_path: Path) -> None:
    config = site.node(1, stack="kv", group_resource="Group")
    site.front.rules.insert(0, lambda call: Answer(200, SIGNALLED) if call.action == "SignalResource" else None)
    run(site, config, tmp_path, "abandon", "--reason", "no EFA")
    code, said = run(site, config, tmp_path, "abandon", "--reason", "no EFA")
    assert code == 1 and "launch hook: none was waiting" in said and len(site.hooks.completed) == 1
    # The stack may be updating others of the group meanwhile.
    assert len(site.front.of("SignalResource")) == 1


def test_a_missing_permission_is_named_with_a_hint(site: Site, tmp_path: Path) -> None:
    body = b"<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
    site.front.rules.insert(0, lambda call: Answer(403, body) if call.action == "CompleteLifecycleAction" else None)
    with answering({"/health": [(200, "")]}) as url:
        code, said = run(site, site.node(port_of(url)), tmp_path, "ready")
    assert code == 1 and "CompleteLifecycleAction: AccessDenied" in said and "hint: the identity lacks" in said


def test_without_a_configuration(site: Site, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.lifecycle", "abandon"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, "KVR_NODE_CONFIG": str(tmp_path / "none")},
    )  # fmt: skip
    assert done.returncode == 1 and "none can't be read" in done.stderr and "hint" in done.stderr


def test_a_service_that_systemd_gave_up_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = site.node(free_port(), load_budget_s=600)
    for state in ("failed", "inactive"):
        says(monkeypatch, tmp_path, state)
        begun = time.monotonic()
        with pytest.raises(NotReady, match=rf"kv-roundtrip-engine is {state} and .*refused.*hint:.*reset-failed"):
            ready(config, Instance(config, Metadata(config.metadata_url)))
        assert time.monotonic() - begun < 10
    # Between two starts of it.
    says(monkeypatch, tmp_path, "activating")
    with pytest.raises(NotReady, match="not ready after"):
        ready(dataclasses.replace(config, load_budget_s=1), Instance(config, Metadata(config.metadata_url)))


def test_metadata_that_is_late_is_waited_for(site: Site) -> None:
    site.metadata.failures = 6
    with answering({"/health": [(200, "")]}) as url:
        config = site.node(port_of(url))
        ready(config, Instance(config, Metadata(config.metadata_url)))
    assert site.hooks.completed and not site.metadata.failures


def test_a_node_is_tagged_before_it_is_in_service(site: Site, tmp_path: Path) -> None:
    """Else one whose tag fails would be in service for ever, without turns."""
    site.front.rules.insert(0, lambda call: Answer(403, DENIED) if call.action == "CreateTags" else None)
    with answering({"/health": [(200, "")]}) as url:
        code, said = run(site, site.node(port_of(url)), tmp_path, "ready")
    assert code == 1 and "CreateTags: AccessDenied" in said and not site.hooks.completed


def test_a_node_that_is_to_leave_is_not_tagged_as_serving(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVR_RUN", str(tmp_path))
    (tmp_path / "draining").touch()
    with answering({"/health": [(200, "")]}) as url:
        config = site.node(port_of(url))
        ready(config, Instance(config, Metadata(config.metadata_url)))
    assert site.state is None


def test_a_node_of_a_wrong_configuration_can_still_be_given_up(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    wrong = dataclasses.asdict(site.node(1, stack="kv")) | {"of_a_later_version": 1, "engine_port": "8000"}
    del wrong["valkey"]
    file.write_text(json.dumps(wrong))
    done = subprocess.run(
        [sys.executable, "-m", "runtime.lifecycle", "abandon"],
        cwd=ROOT, capture_output=True, text=True, timeout=90, env={**os.environ, "KVR_NODE_CONFIG": str(file)},
    )  # fmt: skip
    assert done.returncode == 1 and site.hooks.completed == [(site.instance, HOOK, "ABANDON")]
    assert "of_a_later_version is not known" in done.stderr and len(site.front.of("SignalResource")) >= 1


@pytest.mark.parametrize(
    ("statuses", "stopped"),
    [
        (("InProgress", "Cancelled", "Cancelled"), ["Launch"]),
        (("InProgress", "Cancelled", "Successful", "Cancelled"), []),
        (("InProgress",), []),
    ],
)
def test_the_third_launch_in_a_row_that_fails_is_the_last(
    aws: Aws, site: Site, caplog: pytest.LogCaptureFixture, statuses: tuple[str, ...], stopped: list[str]
) -> None:
    group = f"kv-{len(statuses)}"
    launch(aws, group)
    site.front.rules.append(Activities(*statuses))
    config = site.node(1, group=group)
    abandon(config, Instance(config, Metadata(config.metadata_url)), "no EFA", 0)
    assert suspended(aws, group) == stopped and [result for *_, result in site.hooks.completed] == ["ABANDON"]
    assert (f"resume-processes --auto-scaling-group-name {group}" in caplog.text) is bool(stopped)
    # A node that had been in service is no failed launch.
    aws.client("autoscaling").resume_processes(AutoScalingGroupName=group)
    abandon(config, Instance(config, Metadata(config.metadata_url)), "no EFA", 0)
    assert suspended(aws, group) == []


def test_a_group_that_may_not_be_looked_at_keeps_no_node(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.front.rules.append(lambda call: Answer(403, DENIED) if call.action == "DescribeScalingActivities" else None)
    config = site.node(1)
    abandon(config, Instance(config, Metadata(config.metadata_url)), "no EFA", 0)
    assert site.hooks.completed and "DescribeScalingActivities: AccessDenied" in caplog.text


DENIED = (
    b"<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
)
