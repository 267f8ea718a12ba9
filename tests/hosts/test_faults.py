"""What a node does when something fails at boot, at a reboot, or in service: the image's units and scripts under real systemd."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest

from tests.aws import Answer, Call, throttle
from tests.hosts.bare import Machine, Yard, until, yard
from tests.hosts.host import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "hosts can be made")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with yard(tmp_path_factory.mktemp("hosts")) as started:
        yield started


@pytest.fixture
def engine(made: Yard) -> Iterator[Machine]:
    with made.machine("decode", load_budget_s=600) as machine:
        machine.stand_in()
        yield machine


@pytest.fixture
def router(made: Yard) -> Iterator[Machine]:
    with made.machine("router", load_budget_s=600) as machine:
        yield machine


def test_an_engine_that_crashes_at_each_start_is_given_up_at_once(engine: Machine) -> None:
    engine.shell("touch /run/engine-fails")
    assert engine.boot() == 1
    # Not after the load budget; three starts, a second apart.
    assert engine.took < 60 and engine.results == ["ABANDON"]
    assert [status for _, _, status in engine.signals.seen] == ["FAILURE"]
    assert engine.active("kv-roundtrip-engine") == "failed"
    log = engine.host.file("/var/log/kv-roundtrip/boot.log")
    assert "kv-roundtrip-engine is failed" in log and "Start request repeated too quickly" in log
    assert not engine.suspended


def test_the_third_failed_launch_in_a_row_is_the_last(engine: Machine) -> None:
    engine.activities.statuses = ("InProgress", "Cancelled", "Cancelled", "Successful")
    engine.shell("touch /run/engine-fails")
    assert engine.boot() == 1
    assert engine.suspended == ["Launch"] and engine.results == ["ABANDON"]
    assert "resume-processes" in engine.output
    actions = [call.action for call in engine.front.calls]
    assert actions.index("SuspendProcesses") < actions.index("CompleteLifecycleAction")


def restarted(engine: Machine, before: int) -> bool:
    return engine.pid("kv-roundtrip-engine") not in (0, before)


def test_an_engine_that_dies_in_service_is_started_again(engine: Machine) -> None:
    assert engine.boot() == 0, engine.output
    assert engine.results == ["CONTINUE"] and engine.state == "serving"
    # The second as vLLM ends when one of its processes has died: by itself, with 0.
    for signal in ("KILL", "TERM"):
        before = engine.pid("kv-roundtrip-engine")
        engine.shell(f"kill -{signal} {before}")
        until(functools.partial(restarted, engine, before))
    assert engine.active("kv-roundtrip-agent") == "active" and engine.state == "serving"
    assert not engine.front.of("SetInstanceHealth")
    # A third time is too often: the agent does not wait for the load budget, nothing is loading.
    engine.shell("touch /run/engine-fails; systemctl kill -s KILL kv-roundtrip-engine")
    until(lambda: bool(engine.front.of("SetInstanceHealth")))
    assert "kv-roundtrip-engine is failed" in engine.host.file("/var/log/kv-roundtrip/agent.log")


def test_after_a_reboot_a_node_serves_again(engine: Machine) -> None:
    assert engine.boot() == 0, engine.output
    # As one that drained for a reason that is gone since.
    engine.aws.client("ec2").create_tags(
        Resources=[engine.instance], Tags=[{"Key": "kv-roundtrip:state", "Value": "draining"}]
    )
    engine.host.reboot()
    until(lambda: engine.active("kv-roundtrip-ready") == "active")
    assert engine.active("kv-roundtrip-engine") == engine.active("kv-roundtrip-agent") == "active"
    assert engine.state == "serving" and engine.results == ["CONTINUE"]
    # Told once more by hand, nothing happens.
    engine.shell("/opt/kv-roundtrip/runtime/boot/start.sh decode")
    assert engine.results == ["CONTINUE"]


def test_a_reboot_while_the_node_is_to_leave_does_not_bring_it_back(engine: Machine) -> None:
    assert engine.boot() == 0, engine.output
    assert engine.host.metadata is not None
    engine.shell("systemctl stop kv-roundtrip-agent")
    engine.host.metadata.values["autoscaling/target-lifecycle-state"] = "Terminated"
    # The engine takes longer to load than the agent needs to see that.
    engine.shell(
        "sed -i 's/^ExecStart=.usr/ExecStartPre=sleep 4\\n&/' /etc/systemd/system/kv-roundtrip-engine.service.d/*"
    )
    engine.host.reboot()
    until(lambda: engine.active("kv-roundtrip-ready") == "active")
    assert engine.state == "draining"


def test_a_reboot_without_parameter_store_ends_in_a_replacement(made: Yard) -> None:
    with made.machine("decode", load_budget_s=5) as machine:
        machine.stand_in()
        assert machine.boot() == 0, machine.output
        # Sooner than on a node, where both take minutes.
        machine.shell(
            "cd /etc/systemd/system && mkdir kv-roundtrip-{tunables,agent}.service.d\n"
            "printf '[Service]\\nTimeoutStartSec=3\\n' >kv-roundtrip-tunables.service.d/soon.conf\n"
            "printf '[Service]\\nEnvironment=KVR_AGENT_INTERVAL=1\\n' >kv-roundtrip-agent.service.d/soon.conf"
        )
        refused = Answer(400, b'{"__type":"AccessDeniedException"}', "application/x-amz-json-1.1")
        machine.front.rules.insert(0, lambda call: refused if call.action == "GetParametersByPath" else None)
        machine.host.reboot()
        until(lambda: bool(machine.front.of("SetInstanceHealth")))
        assert machine.active("kv-roundtrip-engine") == "inactive"


def test_a_node_of_another_version_than_its_template_is_given_up(router: Machine) -> None:
    assert router.boot(role="router", of_a_later_version=1) == 1
    assert router.took < 30 and router.results == ["ABANDON"] and "of_a_later_version is not known" in router.output


def test_an_unknown_role_is_given_up(router: Machine) -> None:
    assert router.boot(role="gateway") == 1
    assert router.took < 30 and router.results == ["ABANDON"] and "no role is called 'gateway'" in router.output


def test_parameter_store_that_refuses_for_a_while_is_waited_for(router: Machine) -> None:
    router.front.rules.insert(0, throttle(8, "GetParametersByPath"))
    assert router.boot() == 0, router.output
    assert router.results == ["CONTINUE"] and len(router.front.of("GetParametersByPath")) > 8


def test_without_tunables_a_node_is_given_up_soon(router: Machine) -> None:
    assert router.boot(parameters="/none") == 1
    assert router.took < 30 and router.results == ["ABANDON"]
    assert "no tunable below /none" in router.host.file("/var/log/kv-roundtrip/boot.log")


def test_metadata_that_comes_late_delays_and_does_not_fail(router: Machine) -> None:
    router.shell("ip route add default dev eth0")
    assert router.host.metadata is not None
    router.host.metadata.failures = 30
    assert router.boot() == 0, router.output
    assert router.results == ["CONTINUE"] and not router.host.metadata.failures


def test_a_router_is_up_before_ec2_answers_and_a_killed_agent_comes_back(router: Machine) -> None:
    down = [True]

    def broken(call: Call) -> Answer | None:
        return Answer(503, b"<Response/>") if call.action == "DescribeInstances" and down[0] else None

    router.front.rules.insert(0, broken)
    assert router.boot() == 0, router.output
    agent = router.pid("kv-roundtrip-agent")
    router.shell(f"kill -KILL {agent}")
    down[0] = False
    until(lambda: "engines are read again" in router.host.file("/var/log/kv-roundtrip/router.log"), 60)
    until(lambda: router.pid("kv-roundtrip-agent") not in (0, agent))


def test_an_image_without_its_environment_says_so(router: Machine) -> None:
    router.shell("umount /opt/kv-roundtrip")
    begun = time.monotonic()
    assert router.boot() == 1
    assert "holds no /opt/kv-roundtrip" in router.output and time.monotonic() - begun < 20


def test_names_with_odd_characters_reach_the_node_as_they_are(engine: Machine) -> None:
    name = 'it\'s "a" $(touch /run/broken) `x` \\ ${HOME} NODE %s {role} é'
    assert engine.boot(model=name, served_name="NODE\nNODE") == 0, engine.output
    kept = "/opt/kv-roundtrip/.venv/bin/python -c 'from runtime.node import NodeConfig; print(ascii(NodeConfig.read().model))'"
    assert engine.shell(f"cd /opt/kv-roundtrip && {kept}").strip() == ascii(name)
    assert "broken" not in engine.shell("ls /run")


def test_a_bad_value_in_parameter_store_changes_nothing_but_the_log(router: Machine) -> None:
    assert router.boot() == 0, router.output
    ssm = router.aws.client("ssm")
    try:
        ssm.put_parameter(Name="/kv-roundtrip/max_attempts", Value="many", Type="String", Overwrite=True)
        until(lambda: "max_attempts is 'many'" in router.host.file("/var/log/kv-roundtrip/agent.log"))
        assert '"max_attempts": "2"' in router.host.file("/run/kv-roundtrip/tunables.json")
        # Read by a service that is not root.
        router.shell("runuser -u kvr -- cat /run/kv-roundtrip/tunables.json")
    finally:
        ssm.put_parameter(Name="/kv-roundtrip/max_attempts", Value="2", Type="String", Overwrite=True)


def test_a_full_disk_for_logs_is_no_reason_to_give_up(engine: Machine) -> None:
    fill = "dd if=/dev/zero of=/var/log/kv-roundtrip/full bs=1k 2>/dev/null || true"
    engine.shell(f"mount -t tmpfs -o size=64k tmpfs /var/log/kv-roundtrip; {fill}")
    assert engine.boot() == 0, engine.output
    assert engine.results == ["CONTINUE"] and "No space left" in engine.output


def test_weights_that_did_not_fit_come_once_there_is_room(made: Yard) -> None:
    s3 = made.aws.client("s3")
    s3.create_bucket(Bucket="kvr-faults", CreateBucketConfiguration={"LocationConstraint": made.aws.region})
    for name, size in (("config.json", 10), ("model.safetensors", 3_000_000)):
        s3.put_object(Bucket="kvr-faults", Key=f"tiny/{name}", Body=b" " * size)
    with made.machine("decode", load_budget_s=600, weights="s3://kvr-faults/tiny") as machine:
        machine.stand_in()
        machine.shell("rm -r /etc/systemd/system/kv-roundtrip-weights.service.d && systemctl daemon-reload")
        machine.shell("mount -t tmpfs -o size=2m tmpfs /var/lib/kv-roundtrip")
        assert machine.boot() == 1
        assert machine.results == ["ABANDON"] and machine.took < 30
        assert "GB free, the weights need" in machine.host.file("/var/log/kv-roundtrip/boot.log")
        # What an operator does who kept the machine; the folder becomes the service's own.
        machine.shell("umount /var/lib/kv-roundtrip; systemctl restart kv-roundtrip-storage")
        machine.shell("systemctl start kv-roundtrip-engine && systemctl is-active kv-roundtrip-engine")
        assert machine.shell("stat -c %U /var/lib/kv-roundtrip/weights/model.safetensors").strip() == "kvr"
