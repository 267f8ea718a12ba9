"""A node of the cloud, its tunables and its address -> command line and environment of its vLLM engine. Pure.

Prefill and decode differ in one word, `kv_role`: they run one image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runtime import command
from runtime.address import Interface
from runtime.node import NodeConfig
from runtime.parameters import TUNABLES_FILE_ENV, Reader, Tunables

EFA_LIBRARIES = "/opt/amazon/efa/lib"
"""Where the EFA installer puts its libfabric. A distribution's own may be installed beside it, and is too old."""

# What attention takes: vLLM's flash_attn.py says MultipleOf(16); the CPU's was measured.
_BLOCK_MULTIPLES = {"cuda": 16, "cpu": command.BLOCK_MULTIPLE}


class Backend(StrEnum):
    """NIXL's names for what carries KV blocks; it goes on without one that it does not know."""

    UCX = command.UCX
    LIBFABRIC = "LIBFABRIC"


class LaunchError(ValueError):
    """This node can't run an engine as it is configured. The text has a hint."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the machine itself says."""

    interface: Interface
    model: str
    """Folder with the weights."""
    tunables_file: Path
    dtype: str
    """Of an engine on a CPU."""
    threads: int
    """Likewise."""


def backend(node: NodeConfig) -> Backend:
    return Backend.LIBFABRIC if node.efa_interfaces > 0 else Backend.UCX


def role(node: NodeConfig) -> Reader:
    """Raises `LaunchError` for a node that is no engine."""
    if not node.is_engine or node.accelerator == "none":
        raise LaunchError(
            f"this node's role is {node.role} with accelerator {node.accelerator}; an engine is prefill or decode on cuda, "
            "neuron or cpu. hint: the router's unit is kv-roundtrip-router; if this should be an engine, deploy the stacks again"
        )
    return Reader(node.role)


def check(node: NodeConfig, tunables: Tunables) -> None:
    """Raises `LaunchError` for what vLLM would refuse only after it has loaded the weights."""
    role(node)
    size, multiple = tunables.integer("block_size"), _BLOCK_MULTIPLES.get(node.accelerator, 1)
    if size % multiple:
        raise LaunchError(
            f"block_size is {size} tokens; engines on {node.accelerator} take multiples of {multiple}. "
            f"hint: set {node.parameters}/block_size to {max(multiple, size // multiple * multiple)} and start the engines again"
        )
    if node.accelerator == "cuda" and node.tensor_parallel > node.accelerators:
        raise LaunchError(
            f"tensor_parallel is {node.tensor_parallel} on a node with {node.accelerators} GPUs. "
            f"hint: set it to {node.accelerators} or less and deploy the stacks"
        )


def argv(node: NodeConfig, tunables: Tunables, host: Host) -> list[str]:
    """Raises `LaunchError`, see `check`."""
    check(node, tunables)
    line = command.server(host.model, node.served_name, host.interface.address, node.engine_port, tunables)
    if node.accelerator == "cpu":
        line += command.cpu_arguments(host.dtype)
    else:
        line += ["--tensor-parallel-size", str(node.tensor_parallel)]
    if node.max_model_len:
        line += ["--max-model-len", str(node.max_model_len)]
    return [*line, "--kv-transfer-config", json.dumps(transfer_config(node, tunables))]


def transfer_config(node: NodeConfig, tunables: Tunables) -> dict[str, object]:
    # On Neuron too the buffer is called cuda: vllm-neuron maps the name to device memory.
    device = "cpu" if node.accelerator == "cpu" else "cuda"
    return command.kv_transfer(role(node), tunables, [backend(node).value], device)


def environment(node: NodeConfig, tunables: Tunables, host: Host, inherited: Mapping[str, str]) -> dict[str, str]:
    """What the engine needs beside, or instead of, what it inherits."""
    variables = {
        **command.server_environment(host.interface.address, node.side_channel_port, tunables),
        **network(node, host.interface.name, inherited),
        "VLLM_LOGGING_LEVEL": tunables.text("log_level").upper(),
        # The weights are here: an engine that asks the hub at start is one more thing that can fail.
        "HF_HUB_OFFLINE": "1",
        TUNABLES_FILE_ENV: str(host.tunables_file),
    }
    if node.accelerator == "cpu":
        variables |= command.cpu_environment(tunables, host.threads)
    return variables


def network(node: NodeConfig, interface: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that decides which way KV blocks take; the preflight probes NIXL with it."""
    if backend(node) is Backend.UCX:
        variables = {"UCX_NET_DEVICES": interface}
        return variables | ({"UCX_TLS": command.UCX_TRANSPORTS} if node.accelerator == "cpu" else {})
    libraries = [EFA_LIBRARIES, *filter(None, inherited.get("LD_LIBRARY_PATH", "").split(":"))]
    # Without FI_PROVIDER libfabric takes TCP where EFA is not ready, and reports success.
    variables = {"FI_PROVIDER": "efa", "LD_LIBRARY_PATH": ":".join(dict.fromkeys(libraries))}
    if node.accelerator == "neuron":
        variables |= {"FI_EFA_ENABLE_SHM_TRANSFER": "0", "FI_EFA_USE_DEVICE_RDMA": "1"}
    return variables
