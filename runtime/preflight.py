"""`python -m runtime.preflight [--json]`: refuses to start an engine that would fail, or be slow, with a reason and the fix.

A line per check. Exit code 0: the engine may start; 1: it may not; 2: the node's own configuration is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runtime import fabric_checks, launch, node_checks
from runtime.address import Interface
from runtime.engine import MISCONFIGURED, model_folder
from runtime.fabric_checks import Libfabric
from runtime.node import NodeConfig, NodeError, run_folder, weights_folder
from runtime.probes import Machine, Output
from runtime.verdict import Result, failed, passed, warned

_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_NEURON_LS = "/opt/aws/neuron/bin/neuron-ls"
_GPU_QUERY = ["nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"]
_INFINIBAND = Path("/sys/class/infiniband")
_VERBS = Path("/dev/infiniband")

# p5en brings its EFA up late.
_EFA_RETRIES, _EFA_PAUSE = 3, 5.0
# The first answer of a GPU driver without persistence, and NIXL's first use of 16 rails, take many seconds.
_QUICK, _SLOW = 20.0, 120.0
_REACH_LIMIT = 3.0
_REACH_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    applies: Callable[[NodeConfig], bool]
    look: Callable[[NodeConfig, Machine], Result]


def _efa(node: NodeConfig, machine: Machine) -> Result:
    for attempt in range(_EFA_RETRIES + 1):
        if attempt:
            machine.pause(_EFA_PAUSE)
        lspci = machine.run(["lspci", "-nn", "-d", "1d0f:"], _QUICK)
        devices = machine.names(_INFINIBAND)
        result = fabric_checks.efa(node.efa_interfaces, lspci, devices, machine.names(_VERBS, "uverbs*"))
        if result.ok:
            break
    return result


def _provider(node: NodeConfig, machine: Machine) -> Result:
    said = Libfabric(
        efa=machine.run([_FI_INFO, "-p", "efa"], _QUICK),
        all=machine.run([_FI_INFO], _QUICK),
        version=machine.run([_FI_INFO, "--version"], _QUICK),
    )
    try:
        nixl_version = version("nixl")
    except PackageNotFoundError:
        nixl_version = ""
    return fabric_checks.provider(node.efa_interfaces, said, nixl_version)


def _driver(node: NodeConfig, machine: Machine) -> Result:
    if node.accelerator == "cuda":
        return node_checks.nvidia(node.accelerators, machine.run(_GPU_QUERY, _SLOW))
    return node_checks.neuron(node.accelerators, _neuron_ls(machine))


def _neuron_ls(machine: Machine) -> Output:
    """Neuron 2.34 has another option for it than those before."""
    newer = machine.run([_NEURON_LS, "--output-format", "json"], _SLOW)
    return newer if newer.ok or newer.code is None else machine.run([_NEURON_LS, "--json-output"], _SLOW)


def _fabric_manager(node: NodeConfig, machine: Machine) -> Result:
    state = machine.run(["systemctl", "is-active", "nvidia-fabricmanager"], _QUICK)
    return node_checks.fabric_manager(machine.run(_GPU_QUERY, _SLOW), state)


def _huge_pages(_: NodeConfig, machine: Machine) -> Result:
    return node_checks.huge_pages(machine.text(Path("/proc/meminfo")))


def _memlock(node: NodeConfig, machine: Machine) -> Result:
    return node_checks.memlock(machine.text(Path("/proc/self/limits")), required=node.efa_interfaces > 0)


def _address(node: NodeConfig, machine: Machine) -> Result:
    found = machine.interface(node.metadata_url)
    if isinstance(found, Interface):
        return passed("address", f"{found.address} on {found.name}")
    seen, _, hint = str(found).partition(". hint: ")
    return failed("address", seen, hint)


def _own(node: NodeConfig, machine: Machine) -> Interface:
    found = machine.interface(node.metadata_url)
    return found if isinstance(found, Interface) else Interface("", "")


def _nixl(node: NodeConfig, machine: Machine) -> Result:
    backend = launch.backend(node)
    network = launch.network(node, _own(node, machine).name, os.environ)
    argv = [sys.executable, "-m", "runtime.nixl_probe", backend.value]
    if node.accelerator == "cuda":
        argv.append("--torch")
    probe = machine.run(
        argv, _SLOW, {name: text for name, text in network.items() if text} | {"NIXL_LOG_LEVEL": "INFO"}
    )
    return fabric_checks.nixl(backend, node.efa_interfaces, probe)


def _peers(node: NodeConfig, machine: Machine) -> Result:
    path = run_folder() / "engines.json"
    text = machine.text(path)
    try:
        found = node_checks.peers_of(text, _own(node, machine).address, node.side_channel_port) if text else []
    except ValueError as error:
        return warned("peers", f"{path}: {error}", "the node's agent writes it: `systemctl restart kv-roundtrip-agent`")
    with ThreadPoolExecutor(_REACH_AT_ONCE) as pool:
        reached = list(pool.map(lambda peer: machine.reach(peer.host, peer.port, _REACH_LIMIT), found))
    return node_checks.peers(list(zip(found, reached, strict=True)))


def _clock(_: NodeConfig, machine: Machine) -> Result:
    return node_checks.clock(machine.run(["chronyc", "tracking"], _QUICK), machine.run(["timedatectl", "show"], _QUICK))


def _disk(node: NodeConfig, machine: Machine) -> Result:
    folder = model_folder(node)
    shown = folder or weights_folder()
    return node_checks.disk(str(shown), folder is not None, machine.space(shown))


def _has_efa(node: NodeConfig) -> bool:
    return node.efa_interfaces > 0


def _has_accelerator(node: NodeConfig) -> bool:
    return node.accelerator in ("cuda", "neuron")


def _is_engine(node: NodeConfig) -> bool:
    return node.is_engine


CHECKS = (
    Check("driver", _has_accelerator, _driver),
    Check("fabricmanager", lambda node: node.accelerator == "cuda", _fabric_manager),
    Check("efa", _has_efa, _efa),
    Check("provider", _has_efa, _provider),
    Check("hugepages", _has_efa, _huge_pages),
    Check("memlock", _is_engine, _memlock),
    Check("address", _is_engine, _address),
    Check("nixl", _is_engine, _nixl),
    Check("peers", _has_accelerator, _peers),
    Check("clock", lambda _: True, _clock),
    Check("disk", _is_engine, _disk),
)


def survey(node: NodeConfig, machine: Machine) -> Iterator[Result]:
    """Each check that applies to `node`, as it is done. A fault of ours fails that check and no other."""
    for check in CHECKS:
        if not check.applies(node):
            continue
        try:
            yield check.look(node, machine)
        except Exception as error:
            seen = f"the check itself broke: {type(error).__name__}: {error}"
            yield failed(check.name, seen, "report this to the project with the output of --json")


def main(arguments: list[str] | None = None, machine: Machine | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m runtime.preflight", description="Checks this node before its engine."
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON list instead of a line per check")
    given = parser.parse_args(arguments)
    try:
        node = NodeConfig.read()
    except NodeError as error:
        print(f"runtime.preflight: {error}", file=sys.stderr)
        return MISCONFIGURED
    results = []
    for result in survey(node, machine or Machine()):
        results.append(result)
        if not given.as_json:
            print(result.line, flush=True)
    if given.as_json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
