"""A machine that answers with recorded outputs, and a node's configuration to go with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.address import AddressError, Interface
from runtime.node import NodeConfig
from runtime.probes import Machine, Output, Reach, Space

FOLDER = Path(__file__).parent

_COMMANDS = (
    ("lspci", "lspci"), ("fi_info -p efa", "fi_info_efa"), ("fi_info --version", "fi_info_version"), ("fi_info", "fi_info_all"),
    ("nvidia-smi", "nvidia_smi"), ("systemctl is-active nvidia-fabricmanager", "fabricmanager"), ("runtime.nixl_probe", "nixl"),
    ("neuron-ls --json-output", "neuron_ls"), ("neuron-ls --output-format", "neuron_ls_new"), ("chronyc", "chronyc"),
    ("timedatectl", "timedatectl"),
)  # fmt: skip
_FILES = {"/proc/meminfo": "meminfo", "/proc/self/limits": "limits"}
_FOLDERS = {"/sys/class/infiniband": "infiniband", "/dev/infiniband": "uverbs"}


def recording(path: str) -> Output:
    """`path` is like "p5en/lspci"."""
    lines = (FOLDER / f"{path}.txt").read_text().splitlines(keepends=True)
    assert lines[0].startswith("# source: "), path
    code, body = 0, []
    for line in lines:
        if line.startswith("# exit: "):
            code = int(line.removeprefix("# exit: "))
        elif not line.startswith(("# source: ", "# command: ")):
            body.append(line)
    stdout, _, stderr = "".join(body).partition("# stderr\n")
    return Output(code, stdout, stderr)


class RecordedMachine(Machine):
    """Answers from the first of `scenarios` that has the output; a tool that none has is not installed."""

    def __init__(self, *scenarios: str) -> None:
        super().__init__()
        self._scenarios = scenarios
        self.asked: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.paused: list[float] = []
        self.reached: dict[tuple[str, int], Reach] = {}
        self.later: dict[str, str] = {}
        """Name of an output -> scenario that has it once the preflight has paused."""

    def _find(self, name: str) -> Output | None:
        if self.paused and name in self.later:
            return recording(f"{self.later[name]}/{name}")
        for scenario in self._scenarios:
            if (FOLDER / scenario / f"{name}.txt").exists():
                return recording(f"{scenario}/{name}")
        return None

    def run(self, argv: list[str], seconds: float, environment: Mapping[str, str] | None = None) -> Output:
        self.asked.append(argv)
        self.environments.append(environment or {})
        line = " ".join(argv)
        name = next((name for words, name in _COMMANDS if words in line), "")
        return self._find(name) or Output(fault=f"{argv[0]} is not installed")

    def text(self, path: Path) -> str:
        found = self._find(_FILES[str(path)]) if str(path) in _FILES else None
        return found.stdout if found else super().text(path)

    def names(self, folder: Path, pattern: str = "*") -> list[str]:
        found = self._find(_FOLDERS[str(folder)])
        return found.stdout.split() if found else []

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)

    def interface(self, metadata_url: str) -> Interface | AddressError:
        return Interface("ens5", "10.0.0.5")

    def reach(self, host: str, port: int, seconds: float) -> Reach:
        return self.reached[host, port]

    def space(self, folder: Path) -> Space | None:
        return Space(free=3_000 * 10**9, used=65 * 10**9)


_NODE: dict[str, Any] = {
    "deployment": "chat", "region": "us-east-2", "role": "prefill", "build": "ami-0123", "parameters": "/kv-roundtrip",
    "accelerator": "cuda", "accelerators": 8, "tensor_parallel": 8, "efa_interfaces": 16, "model": "Qwen/Qwen3-32B", "weights": "hub",
    "served_name": "qwen3", "hub_token_parameter": "", "max_model_len": 0, "group": "chat-prefill", "launch_hook": "launch",
    "terminate_hook": "terminate", "load_budget_s": 1_800, "engine_port": 8000, "side_channel_port": 5600, "router_port": 8080,
    "valkey": "", "endpoint_url": "", "metadata_url": "http://169.254.169.254",
}  # fmt: skip
_KINDS: dict[str, dict[str, Any]] = {
    "cuda": {},
    "neuron": {"accelerator": "neuron", "accelerators": 16, "tensor_parallel": 64},
    "cpu": {"accelerator": "cpu", "accelerators": 0, "tensor_parallel": 1, "efa_interfaces": 0},
}


def node_values(kind: str = "cuda", **changes: Any) -> dict[str, Any]:
    return {**_NODE, **_KINDS[kind], **changes}


def node(kind: str = "cuda", **changes: Any) -> NodeConfig:
    return NodeConfig.parse(node_values(kind, **changes))
