import json
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.command import EngineSpec, argv, best_dtype, cpu_flags, environment, transfer_config
from runtime.parameters import Reader, Tunables

SPEC = EngineSpec(
    role=Reader.PREFILL,
    model="/models/some",
    served_name="some",
    port=4001,
    side_channel_port=4002,
    tunables=Tunables.of({"block_size": 64, "kv_recompute_threshold": 7, "kv_cache_gib": 3}),
)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_engines_listen_on_loopback_only() -> None:
    command = argv(SPEC)
    assert option(command, "--host") == "127.0.0.1" and option(command, "--port") == "4001"
    environ = environment(SPEC, {}, Path("/scratch"))
    assert environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1" and environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "4002"
    assert environ["UCX_NET_DEVICES"] == "lo"


def test_tunables_reach_the_command_line() -> None:
    command = argv(SPEC)
    assert option(command, "--block-size") == "64"
    extra = json.loads(option(command, "--kv-transfer-config"))["kv_connector_extra_config"]
    assert extra["kv_recompute_threshold"] == 7
    assert environment(SPEC, {}, Path("/scratch"))["VLLM_CPU_KVCACHE_SPACE"] == "3"


def test_every_engine_tunable_changes_the_command_or_the_environment() -> None:
    """A value that nothing passes on would be a setting that does nothing."""
    others = {
        "round_trip": False, "kv_recompute_threshold": 1, "decoder_kv_blocks_ttl": 999, "kv_lease_duration": 99,
        "block_size": 16, "nixl_progress_delay": 5, "kv_cache_gib": 2,
    }  # fmt: skip
    spec = replace(SPEC, tunables=Tunables.of())
    before = (argv(spec), environment(spec, {}, Path("/scratch")))
    for name, value in others.items():
        changed = replace(spec, tunables=Tunables.of({name: value}))
        assert (argv(changed), environment(changed, {}, Path("/scratch"))) != before, name


@pytest.mark.parametrize(("role", "kv_role"), [(Reader.PREFILL, "kv_producer"), (Reader.DECODE, "kv_consumer")])
def test_roles(role: Reader, kv_role: str) -> None:
    assert transfer_config(replace(SPEC, role=role))["kv_role"] == kv_role


def test_ours_recomputes_what_it_cannot_load() -> None:
    config = transfer_config(SPEC)
    assert config["kv_connector"] == "RoundtripConnector"
    assert config["kv_connector_module_path"] == "connector.connector"
    assert config["kv_load_failure_policy"] == "recompute"


def test_the_stock_connector_keeps_its_own_defaults() -> None:
    """With `recompute` a failed load of the stock connector hangs for ever."""
    config = transfer_config(replace(SPEC, stock_connector=True))
    assert config["kv_connector"] == "NixlConnector"
    assert "kv_connector_module_path" not in config and "kv_load_failure_policy" not in config


def test_extra_arguments_come_last_so_that_they_win() -> None:
    command = argv(replace(SPEC, max_model_len=512, extra_arguments=("--block-size", "8")))
    assert option(command, "--max-model-len") == "512"
    assert command[-2:] == ["--block-size", "8"]


def test_a_local_folder_never_asks_the_hub(tmp_path: Path) -> None:
    local, hub = replace(SPEC, model=str(tmp_path)), replace(SPEC, model="org/name")
    assert environment(local, {"HF_HUB_OFFLINE": "0"}, tmp_path)["HF_HUB_OFFLINE"] == "1"
    assert environment(hub, {}, tmp_path)["HF_HUB_OFFLINE"] == "0"
    assert environment(hub, {"HF_HUB_OFFLINE": "1"}, tmp_path)["HF_HUB_OFFLINE"] == "1"


def test_the_environment_is_inherited_but_for_what_we_set() -> None:
    environ = environment(SPEC, {"PATH": "/bin", "OMP_NUM_THREADS": "64", "TMPDIR": "/tmp"}, Path("/scratch"))
    assert environ["PATH"] == "/bin" and environ["OMP_NUM_THREADS"] == "1" and environ["TMPDIR"] == "/scratch"


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [({"avx2", "avx512f"}, "float32"), ({"avx512_bf16"}, "bfloat16"), ({"amx_bf16"}, "bfloat16"), (set(), "float32")],
)
def test_bfloat16_only_where_the_cpu_computes_in_it(flags: set[str], dtype: str) -> None:
    assert best_dtype(frozenset(flags)) == dtype


def test_cpu_flags(tmp_path: Path) -> None:
    page = tmp_path / "cpuinfo"
    page.write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\nbogomips: 1\n")
    assert cpu_flags(page) == {"fpu", "avx2", "amx_bf16"}
    page.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert cpu_flags(page) == frozenset()
