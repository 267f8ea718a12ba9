"""The `cpu` profile's machines, run here: a host per instance, each booted by its rendered user data, with systemd and the image's
units, tunables and weights from the emulator, NIXL over veth."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runtime.model import tiny
from stacks.config import Config
from tests.aws import CREDENTIALS, Aws, Front, LifecycleHooks, front, tags
from tests.cloud.synth import config
from tests.emulator.process import running
from tests.hosts.account import BUCKET, IMAGE, Activities, Instance, Signals, deploy, instances, put_weights
from tests.hosts.host import ROOT, Host, why_not
from tests.hosts.namespace import Network

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "hosts can be made")

ENGINES = ("prefill", "decode")
CLIENT = "10.40.255.2"
BOOT_LIMIT_S = 420.0
PYTHON = "/opt/kv-roundtrip/.venv/bin/python"


@dataclass
class Deployment:
    aws: Aws
    front: Front
    hooks: LifecycleHooks
    signals: Signals
    config: Config
    machines: dict[str, Instance]
    hosts: dict[str, Host]
    outputs: dict[str, str]
    """What each user data wrote; its exit status is 0, or the fixture fails."""
    network: Network
    client: str
    """Namespace of a client."""

    @property
    def url(self) -> str:
        return f"http://{self.machines['router'].address}:{self.config.router.port}"

    def python(self, *arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """A command of ours where a client is."""
        return subprocess.run(
            ["ip", "netns", "exec", self.client, sys.executable, *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip

    def tune(self, *assignments: str) -> None:
        """As an operator does, from a machine with credentials."""
        given = ["--prefix", "/kv-roundtrip", "--region", self.aws.region, "--endpoint-url", self.front.url]
        done = subprocess.run(
            [sys.executable, "-m", "scripts.tune", "set", *assignments, *given],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **CREDENTIALS},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def unique(role: str) -> str:
    return f"kvr-{os.getpid()}-{role}"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("hosts")
    chosen = config(
        "cpu", model__name="tiny", model__weights=f"s3://{BUCKET}/tiny", model__max_model_len=2048,
        images__engine=IMAGE, images__router=IMAGE, load_budget_minutes=8, tunables__agent_interval="1",
        tunables__kv_recompute_threshold="0",
    )  # fmt: skip
    hooks, signals = LifecycleHooks(), Signals()
    with contextlib.ExitStack() as stack:
        aws = Aws(stack.enter_context(running()).endpoint)
        before = stack.enter_context(front(aws))
        before.rules += [hooks, signals, Activities()]
        put_weights(aws, tiny(), "tiny")
        deploy(aws, chosen)
        machines = instances(aws, chosen)
        assert set(machines) == {*ENGINES, "router"}
        hooks.pending |= {(m.id, f"kv-roundtrip-{role}-launch") for role, m in machines.items()}
        network = Network(unique("net"))
        stack.callback(network.stop)
        network.start()
        client = unique("client")
        stack.callback(network.leave, client)
        network.join(client, CLIENT)
        hosts = {role: host(network, before, folder, role, machine) for role, machine in machines.items()}
        for one in hosts.values():
            stack.callback(one.stop)
            one.start()
        booting = {role: one.boot(machines[role].user_data) for role, one in hosts.items()}
        outputs = {}
        for role, process in booting.items():
            outputs[role] = process.communicate(timeout=BOOT_LIMIT_S)[0]
            assert process.returncode == 0, f"{role}: {outputs[role]}\n{hosts[role].journal()[-4000:]}"
        made = Deployment(aws, before, hooks, signals, chosen, machines, hosts, outputs, network, client)
        wait(lambda: made.python("-c", f"import urllib.request as u; u.urlopen('{made.url}/ready')").returncode == 0)
        yield made


def host(network: Network, aws: Front, folder: Path, role: str, machine: Instance) -> Host:
    place = urlsplit(aws.url)
    assert place.hostname and place.port
    return Host(
        unique(role),
        machine.id,
        machine.address,
        network,
        (place.hostname, place.port),
        CREDENTIALS,
        folder / f"{role}.log",
    )


def wait(until: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "not within its time"
        time.sleep(0.5)


def test_every_node_boots_to_the_end_and_says_so(deployment: Deployment) -> None:
    completed = {(instance, hook): result for instance, hook, result in deployment.hooks.completed}
    for role, machine in deployment.machines.items():
        assert completed[machine.id, f"kv-roundtrip-{role}-launch"] == "CONTINUE"
        assert tags(deployment.aws, machine.id)["kv-roundtrip:state"] == "serving"
        stack = f"kv-roundtrip-{'engines' if role in ENGINES else 'routing'}"
        assert (machine.id, stack, "SUCCESS") in deployment.signals.seen
        assert f"{role} node serves" in deployment.outputs[role]
        service = "engine" if role in ENGINES else "router"
        states = deployment.hosts[role].run("systemctl", "is-active", f"kv-roundtrip-{service}", "kv-roundtrip-agent")
        assert states.stdout.split() == ["active", "active"]
        enabled = deployment.hosts[role].run("systemctl", "is-enabled", f"kv-roundtrip-{service}", "kv-roundtrip-agent")
        assert enabled.stdout.split() == ["enabled", "enabled"]


def test_engines_are_not_run_by_root_and_ask_for_locked_memory(deployment: Deployment) -> None:
    for role in ENGINES:
        shown = deployment.hosts[role].run("systemctl", "show", "kv-roundtrip-engine", "-p", "MainPID,LimitMEMLOCK")
        values = dict(line.split("=", 1) for line in shown.stdout.split())
        # Whether the kernel grants it is the machine's matter: a container may lack CAP_SYS_RESOURCE. Preflight tells.
        assert values["LimitMEMLOCK"] == "infinity"
        assert deployment.hosts[role].run("stat", "-c", "%U", f"/proc/{values['MainPID']}").stdout.strip() == "kvr"
        assert "memlock" in deployment.hosts[role].journal("kv-roundtrip-preflight")


def test_smoke_test_is_green_from_another_machine(deployment: Deployment) -> None:
    done = deployment.python("-m", "scripts.smoke_test", "--url", deployment.url)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_tunable_reaches_all_three_without_a_restart(deployment: Deployment) -> None:
    def pids() -> list[str]:
        return [
            one.run(
                "systemctl", "show", f"kv-roundtrip-{'engine' if role in ENGINES else 'router'}", "-p", "MainPID"
            ).stdout
            for role, one in deployment.hosts.items()
        ]

    before = pids()
    deployment.tune("log_level=debug", "kv_recompute_threshold=77", "decoder_kv_blocks_ttl=481", "handle_ttl=33")
    wanted = {
        "router": ("router.log", ("handle_ttl", "33", "log_level", "debug")),
        "prefill": ("engine.log", ("kv_recompute_threshold", "77", "log_level")),
        "decode": ("engine.log", ("decoder_kv_blocks_ttl", "481", "log_level")),
    }
    for role, (log, words) in wanted.items():
        # An engine looks when it has a request; the router by itself.
        def says(role: str = role, log: str = log, words: tuple[str, ...] = words) -> bool:
            if role != "router":
                deployment.python("-c", ASK, deployment.url)
            lines = deployment.hosts[role].file(f"/var/log/kv-roundtrip/{log}").splitlines()
            changed = " ".join(line for line in lines if "changed" in line or "->" in line)
            return all(word in changed for word in words)

        wait(says)
    assert pids() == before


def test_a_live_threshold_changes_what_prefill_pulls(deployment: Deployment) -> None:
    def pulled() -> float:
        done = deployment.python("-c", TWO_TURNS, deployment.url)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    deployment.tune("kv_recompute_threshold=1000000", "handle_ttl=450")
    time.sleep(4)
    assert pulled() == 0
    deployment.tune("kv_recompute_threshold=0")
    time.sleep(4)
    assert pulled() > 0


def test_rep_19_a_failing_download_gives_the_node_up(deployment: Deployment, tmp_path: Path) -> None:
    name, machine = "i-0badbadbadbadbad0", deployment.machines["decode"]
    hook = "kv-roundtrip-decode-launch"
    deployment.hooks.pending.add((name, hook))
    spare = Instance(name, "decode", "10.40.252.250", machine.user_data.replace(f"{BUCKET}/tiny", f"{BUCKET}/nothing"))
    one = host(deployment.network, deployment.front, tmp_path, "spare", spare)
    try:
        one.start()
        boot = one.boot(spare.user_data)
        output = boot.communicate(timeout=120)[0]
        assert boot.returncode not in (0, None)
        assert (name, hook, "ABANDON") in deployment.hooks.completed
        assert "decode node gives up" in output
        assert "nothing" in one.journal("kv-roundtrip-weights")
        assert one.run("systemctl", "is-active", "kv-roundtrip-engine").stdout.strip() == "inactive"
    finally:
        one.stop()


def test_a_node_that_is_to_leave_drains_first(deployment: Deployment) -> None:
    """The last one: decode is gone afterwards."""
    machine, one = deployment.machines["decode"], deployment.hosts["decode"]
    assert one.metadata is not None
    deployment.hooks.pending.add((machine.id, "kv-roundtrip-decode-terminate"))
    one.metadata.values["autoscaling/target-lifecycle-state"] = "Terminated"
    wait(lambda: (machine.id, "kv-roundtrip-decode-terminate", "CONTINUE") in deployment.hooks.completed, 120)
    assert tags(deployment.aws, machine.id)["kv-roundtrip:state"] == "draining"
    assert one.run("systemctl", "is-active", "kv-roundtrip-engine").stdout.strip() != "active"


ASK = """
import sys
from scripts.turns import ask, client
ask(client(sys.argv[1]), "tiny", [{"role": "user", "content": "hello there"}], max_tokens=4)
"""

TWO_TURNS = """
import sys, time
from scripts.turns import ask, client, counter, following
url, name = sys.argv[1], str(time.time())
before = counter(url, "kvr_pulled_tokens_total")
first = [{"role": "user", "content": "a word and another " * 12 + name}]
answer = ask(client(url), "tiny", first, conversation=name, max_tokens=80)
ask(client(url), "tiny", following(first, answer.text, "and now " * 12), conversation=name, max_tokens=4)
print(counter(url, "kvr_pulled_tokens_total") - before)
"""
