"""Engines as EC2 tags tell of them: the moto server on loopback, whose instances have the addresses of fake engines."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from router import discovery
from router.discovery import Ec2, Engine, SourceFault
from tests.aws import REGION, Answer, Aws, Call, Front, emulator, free_port, front
from tests.fakes.engine import DONE, FINISH, TEXT, FakeEngine, handle
from tests.unit.router.conftest import Client, Stage, System
from tests.unit.router.test_discovery import faults
from tests.unit.router.test_turn import sent_handles

_DEPLOYMENTS = (f"kv-{number}" for number in count())


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with emulator() as aws:
        yield aws


@pytest.fixture(scope="module")
def subnet(server: Aws) -> str:
    ec2 = server.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="127.0.0.0/16")["Vpc"]["VpcId"]
    return str(ec2.create_subnet(VpcId=vpc, CidrBlock="127.0.0.0/16")["Subnet"]["SubnetId"])


@dataclass
class Fleet:
    """One deployment's instances, in an account where others have theirs."""

    ec2: Any
    subnet: str
    proxy: Front
    deployment: str

    def launch(self, role: str, host: str, port: int | str | None, build: str = "ami-1", **more: str) -> str:
        tags = {"deployment": self.deployment, "role": role, "build": build, "port": port, **more}
        listed = [
            {"Key": f"kv-roundtrip:{name}", "Value": str(value)} for name, value in tags.items() if value is not None
        ]
        made = self.ec2.run_instances(
            ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=self.subnet, PrivateIpAddress=host,
            TagSpecifications=[{"ResourceType": "instance", "Tags": listed}],
        )  # fmt: skip
        return str(made["Instances"][0]["InstanceId"])

    def tag(self, instance: str, name: str, value: str) -> None:
        self.ec2.create_tags(Resources=[instance], Tags=[{"Key": f"kv-roundtrip:{name}", "Value": value}])

    def terminate(self, instance: str) -> None:
        self.ec2.terminate_instances(InstanceIds=[instance])

    def source(self, **more: Any) -> Ec2:
        return Ec2(self.deployment, REGION, interval=0.1, **more)


@pytest.fixture
def fleet(server: Aws, subnet: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with front(server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield Fleet(server.client("ec2"), subnet, proxy, next(_DEPLOYMENTS))


_HOSTS = (f"127.0.{number // 200}.{number % 200 + 10}" for number in count())


async def placed(fleet: Fleet, engine: FakeEngine, role: str, **more: str) -> str:
    return await asyncio.to_thread(fleet.launch, role, engine.host, engine.port, **more)


async def pair(fleet: Fleet, stage: Stage) -> System:
    prefill, decode = await stage.prefill(next(_HOSTS)), await stage.decode(host=next(_HOSTS))
    await placed(fleet, prefill, "prefill")
    await placed(fleet, decode, "decode")
    system = await stage.router(fleet.source(), [prefill], [decode])
    await system.settle()
    return system


async def test_tagged_instances_serve_a_turn(fleet: Fleet, stage: Stage) -> None:
    system = await pair(fleet, stage)
    for _ in range(2):
        assert (await system.client.chat("c")).body == TEXT + FINISH + DONE
    assert sent_handles(system) == [None, "e1"]
    assert {(node.url, node.build) for node in system.router.nodes.all} == {
        (system.prefill[0].url, "ami-1"),
        (system.decode[0].url, "ami-1"),
    }


async def test_only_running_engines_of_this_deployment_are_found(fleet: Fleet) -> None:
    fleet.launch("decode", next(_HOSTS), 8000, deployment=f"{fleet.deployment}-2")
    fleet.launch("router", next(_HOSTS), 8000)
    fleet.ec2.stop_instances(InstanceIds=[fleet.launch("decode", next(_HOSTS), 8000)])
    fleet.terminate(fleet.launch("decode", next(_HOSTS), 8000))
    host = next(_HOSTS)
    fleet.launch("decode", host, 8000, build="ami-9", state="serving")
    assert await fleet.source().read() == (Engine("decode", f"http://{host}:8000", "ami-9"),)


@pytest.mark.parametrize("state", ["draining", "stopped by hand"])
async def test_any_state_but_serving_gets_no_new_turns(fleet: Fleet, state: str) -> None:
    fleet.launch("prefill", next(_HOSTS), 8000, state=state)
    (engine,) = await fleet.source().read()
    assert engine.draining


async def test_a_tag_drains_an_engine_and_a_terminated_one_leaves(fleet: Fleet, stage: Stage) -> None:
    system = await pair(fleet, stage)
    await system.client.chat("c")
    first, second = system.decode[0], await stage.decode(handle("e2"), next(_HOSTS))
    await placed(fleet, second, "decode")
    (found,) = fleet.ec2.describe_instances(Filters=[{"Name": "private-ip-address", "Values": [first.host]}])[
        "Reservations"
    ]
    instance = found["Instances"][0]["InstanceId"]
    fleet.tag(instance, "state", "draining")
    nodes = system.router.nodes
    await system.until(lambda: [node.serving for node in nodes.decode] == [False, True])
    for _ in range(2):
        await system.client.chat("c")
    assert sent_handles(system) == [None, "e1", "e2"] and len(first.requests) == 1
    fleet.terminate(instance)
    await system.until(lambda: [node.url for node in nodes.decode] == [second.url])


async def test_every_page_is_read(fleet: Fleet) -> None:
    hosts = [next(_HOSTS) for _ in range(12)]
    for host in hosts:
        fleet.launch("decode", host, 8000)
    engines = await fleet.source(page=5).read()
    assert sorted(engine.url for engine in engines) == sorted(f"http://{host}:8000" for host in hosts)
    calls = [call.form for call in fleet.proxy.of("DescribeInstances")]
    assert [call["MaxResults"] for call in calls] == ["5", "5", "5"]
    assert ["NextToken" in call for call in calls] == [False, True, True]


def refused(code: str, status: int, times: int = 1_000_000) -> Any:
    """A rule: so many DescribeInstances calls end with this error of EC2."""
    left = iter(range(times))
    text = f"<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>"

    def rule(call: Call) -> Answer | None:
        if call.action != "DescribeInstances" or next(left, None) is None:
            return None
        return Answer(status, text.encode())

    return rule


async def test_throttled_calls_are_repeated(fleet: Fleet) -> None:
    fleet.launch("decode", next(_HOSTS), 8000)
    fleet.proxy.rules.append(refused("RequestLimitExceeded", 503, times=2))
    assert len(await fleet.source().read()) == 1
    assert len(fleet.proxy.of("DescribeInstances")) == 3


async def test_a_refusal_keeps_the_table_and_is_logged_once(
    fleet: Fleet, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    system = await pair(fleet, stage)
    fleet.proxy.rules.append(refused("UnauthorizedOperation", 403))
    await system.until(lambda: bool(faults(caplog)))
    asked = len(fleet.proxy.calls)
    await system.until(lambda: len(fleet.proxy.calls) > asked + 2)
    (fault,) = faults(caplog)
    assert "UnauthorizedOperation" in fault and "ec2:DescribeInstances" in fault
    assert (await system.client.chat()).status == 200
    late = await stage.decode(host=next(_HOSTS))
    await placed(fleet, late, "decode")
    fleet.proxy.rules.clear()
    await system.until(lambda: len(system.router.nodes.all) == 3)


async def test_nobody_at_the_address_of_aws_is_a_fault(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SourceFault, match=r"127\.0\.0\.1:9") as raised:
        await fleet.source().read()
    assert raised.value.kind == "EC2 EndpointConnectionError"


async def test_a_slow_api_holds_up_no_turn(fleet: Fleet, stage: Stage) -> None:
    system = await pair(fleet, stage)
    hold = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits(_: Call) -> Answer | None:
        asyncio.run_coroutine_threadsafe(hold.wait(), loop).result(20)
        return None

    asked, began = len(fleet.proxy.calls), time.monotonic()
    fleet.proxy.rules.append(waits)
    await system.until(lambda: len(fleet.proxy.calls) > asked)
    assert (await system.client.chat()).status == 200
    assert time.monotonic() - began < discovery._EC2_READ_SECONDS  # a call that held the loop would have failed by then
    hold.set()


@pytest.mark.parametrize("port", [None, "", "http", "0", "99999"])
async def test_an_instance_that_is_no_engine_is_left_out_and_named_once(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, port: str | None
) -> None:
    odd = fleet.launch("decode", next(_HOSTS), port)
    fleet.launch("decode", next(_HOSTS), 8000)
    source = fleet.source()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert len(await source.read()) == 1
    (told,) = [record.__dict__["fields"] for record in caplog.records if "no engine" in record.getMessage()]
    assert told["instance"] == odd and "hint" in told["reason"]


async def test_the_command_finds_them(fleet: Fleet, stage: Stage) -> None:
    await placed(fleet, await stage.prefill(next(_HOSTS)), "prefill")
    await placed(fleet, await stage.decode(host=next(_HOSTS)), "decode")
    port = free_port()
    argv = [sys.executable, "-m", "router", "--engines-ec2", fleet.deployment, "--region", REGION, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
    client = Client(port)
    try:
        async with asyncio.timeout(60):
            while not await client.is_ready():
                await asyncio.sleep(0.05)
            assert (await client.chat("c")).body == TEXT + FINISH + DONE
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_router_with_a_fixed_list_imports_no_boto3() -> None:
    code = (
        "import sys, router.__main__ as main; main.parse(['--prefill', 'http://h:1', '--decode', 'http://h:2'], {}); "
        "print('boto3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
