"""The agent against moto, a metadata service and a service page on real sockets."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runtime.agent import Agent, Health, Task
from runtime.parameters import PARAMETERS
from tests.aws import Answer, Aws, Call
from tests.node.site import Site, aws, engine_page, site, ttft
from tests.node.systemctl import says
from tests.node.test_source import DEFAULTS, put

__all__ = ("aws", "site")

ROOT = Path(__file__).parents[2]


def test_a_node_is_lost_only_after_longer_than_a_restart() -> None:
    health = Health()
    for second in range(0, 61, 10):
        health = health.after(False, 100.0 + second)
        assert not health.is_lost(100.0 + second, 60)
    assert health.after(False, 161.0).is_lost(161.0, 60)
    assert not health.after(True, 170.0).after(False, 171.0).is_lost(171.0, 60)
    # Seen twice only, however long ago: the agent itself may have been asleep.
    assert not Health(2, 0.0).is_lost(900.0, 60)


def test_a_fault_that_lasts_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    faults = [OSError("no disk"), OSError("no disk"), ZeroDivisionError("ours"), ZeroDivisionError("ours"), None, None]

    def act() -> None:
        if (fault := faults.pop(0)) is not None:
            raise fault

    caplog.set_level("INFO", "runtime")
    task = Task("metrics", act, lambda: 1.0)
    while faults:
        task.run()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "metrics: no disk"),
        ("ERROR", "metrics: a fault that nobody foresaw; the agent goes on"),
        ("INFO", "metrics: well again"),
    ]


def run_tasks(agent: Agent, *names: str) -> None:
    for task in agent.tasks:
        if task.name in names:
            task.run()


def sums(aws: Aws, role: str) -> dict[str, float]:
    cloudwatch = aws.client("cloudwatch")
    found = {}
    for metric in cloudwatch.list_metrics(Namespace="KVRoundtrip")["Metrics"]:
        dimensions = {d["Name"]: d["Value"] for d in metric["Dimensions"]}
        if dimensions != {"Deployment": "kv-roundtrip", "Role": role}:
            continue
        points = cloudwatch.get_metric_statistics(
            Namespace="KVRoundtrip", MetricName=metric["MetricName"], Dimensions=metric["Dimensions"], Period=3600,
            StartTime=datetime.now(UTC) - timedelta(hours=2), EndTime=datetime.now(UTC) + timedelta(hours=1), Statistics=["Sum"],
        )["Datapoints"]  # fmt: skip
        found[metric["MetricName"]] = sum(point["Sum"] for point in points)
    return found


def test_metrics_arrive_in_cloudwatch_in_one_call_a_minute(site: Site) -> None:
    agent = site.agent()
    run_tasks(agent, "metrics")
    site.page(engine_page(expired=3))
    run_tasks(agent, "metrics")
    assert sums(site.aws, "decode") == {
        "EngineUp": 2, "ExpiredLeases": 3, "EfaInterfacesUp": 0, "EfaInterfacesMissing": 0, "TcpFallback": 0,
    }  # fmt: skip
    assert len(site.front.of("PutMetricData")) == 2
    router = dataclasses.replace(site.config, role="router", accelerator="none")
    agent = Agent(router, site.stop, site.folder)
    for page in (ttft(0, 0, 0), ttft(3, 1, 1)):
        site.page(page)
        run_tasks(agent, "metrics")
    assert sums(site.aws, "router") == {"FirstTokensGood": 4, "FirstTokensAll": 5}


def health(site: Site, group: str) -> str:
    (found,) = site.aws.client("autoscaling").describe_auto_scaling_instances(InstanceIds=[site.instance])[
        "AutoScalingInstances"
    ]
    assert found["AutoScalingGroupName"] == group
    return str(found["HealthStatus"]).upper()


def test_a_node_that_stays_sick_is_replaced(site: Site, request: pytest.FixtureRequest) -> None:
    agent, group = site.agent(), request.node.name
    site.answers["/health"] = [(503, "")]
    for _ in range(4):
        run_tasks(agent, "health")
        time.sleep(0.01)
    assert health(site, group) == "HEALTHY"
    run_tasks(agent, "health")
    assert health(site, group) == "UNHEALTHY"


def test_a_node_whose_unit_has_failed_is_replaced_without_waiting_for_it(
    site: Site, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.config = dataclasses.replace(site.config, load_budget_s=3600)
    site.answers["/health"] = [(503, "")]
    for state, wanted in (("activating", "HEALTHY"), ("failed", "UNHEALTHY")):
        says(monkeypatch, site.folder, state)
        agent = site.agent()
        for _ in range(5):
            run_tasks(agent, "health")
            time.sleep(0.01)
        assert health(site, request.node.name) == wanted
    assert "kv-roundtrip-engine is failed" in caplog.text


def test_a_node_that_drains_is_not_called_sick(site: Site, request: pytest.FixtureRequest) -> None:
    agent = site.agent()
    site.metadata.values["autoscaling/target-lifecycle-state"] = "Terminated"
    run_tasks(agent, "leave")
    site.answers["/health"] = [(503, "")]
    for _ in range(6):
        run_tasks(agent, "health")
        time.sleep(0.01)
    assert health(site, request.node.name) == "HEALTHY" and not site.front.of("SetInstanceHealth")


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def started(site: Site, *arguments: str) -> subprocess.Popen[str]:
    (site.folder / "node.json").write_text(json.dumps(dataclasses.asdict(site.config)))
    environment = {**os.environ, "KVR_NODE_CONFIG": str(site.folder / "node.json")}
    command = [sys.executable, "-m", "runtime.agent", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE, env=environment)


def test_fetch_writes_the_tunables_once(site: Site) -> None:
    child = started(site, "fetch")
    _, said = child.communicate(timeout=60)
    assert child.returncode == 0, said
    assert site.tunables() == DEFAULTS | {"agent_interval": "0.2"} and len(site.tunables()) == len(PARAMETERS)


def test_fetch_waits_for_a_clock_that_is_not_set_yet(site: Site) -> None:
    left = [2]

    def refused(call: Call) -> Answer | None:
        if call.action != "GetParametersByPath" or not left[0]:
            return None
        left[0] -= 1
        return Answer(400, b'{"__type":"InvalidSignatureException","message":"not yet current"}', "application/json")

    site.front.rules.insert(0, refused)
    child = started(site, "fetch")
    _, said = child.communicate(timeout=90)
    assert child.returncode == 0, said
    assert said.count("chronyc tracking") == 1 and site.tunables()["agent_interval"] == "0.2"


def test_rep_33_fetch_fails_hard_when_nothing_is_there(site: Site) -> None:
    site.config = dataclasses.replace(site.config, parameters="/none")
    child = started(site, "fetch")
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1 and "no tunable below /none" in said and "hint" in said and "Traceback" not in said


def test_the_agent_goes_on_through_faults_takes_changes_drains_and_leaves_at_once(site: Site) -> None:
    def broken(call: Call) -> Answer | None:
        return Answer(400, b'{"__type":"AccessDenied"}', "application/json") if call.action == "PutMetricData" else None

    site.front.rules.insert(0, broken)
    child = started(site, "run", "--stop-command", f"touch {site.stopped}")
    try:
        until((site.folder / "tunables.json").exists)
        until(lambda: bool(site.front.of("PutMetricData")))
        put(site.aws, "/kv-roundtrip", max_attempts="4", block_size="abc", node_drain_timeout="0")
        until(lambda: site.tunables()["max_attempts"] == "4")
        assert site.tunables()["block_size"] == "32"
        site.metadata.values["spot/instance-action"] = '{"action": "terminate", "time": "2099-01-01T00:00:00Z"}'
        until(site.stopped.exists)
        assert site.state == "draining" and child.poll() is None
        begun = time.monotonic()
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=20)
        assert time.monotonic() - begun < 2 and child.returncode == 0
    finally:
        child.kill()
        child.wait(10)
    assert "metrics: PutMetricData" in said and "block_size is 'abc'" in said and "max_attempts: 2 -> 4" in said
    assert said.count("PutMetricData") == 1 and "Traceback" not in said
