"""From node.json and tunables.json to the command line and environment of an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from runtime import engine, launch
from runtime.address import Interface
from runtime.command import best_dtype, cpu_flags
from runtime.launch import Host, LaunchError
from runtime.node import NodeConfig
from runtime.parameters import PARAMETERS, TUNABLES_FILE_ENV, Apply, Reader, Tunables, Value
from tests.fakes.metadata import serving, usual
from tests.recorded.load import node, node_values

ROOT = Path(__file__).parents[3]
HOST = Host(
    Interface("ens5", "10.0.0.5"),
    "/var/lib/kv-roundtrip/weights",
    Path("/run/kv-roundtrip/tunables.json"),
    "float32",
    4,
)
KINDS = ("cuda", "neuron", "cpu")
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
DEFAULTS = Tunables.of()


def option(line: list[str], name: str) -> str:
    assert line.count(name) == 1, name
    return line[line.index(name) + 1]


def transfer(given: NodeConfig) -> Any:
    return json.loads(option(launch.argv(given, DEFAULTS, HOST), "--kv-transfer-config"))


@pytest.mark.parametrize(("kind", "role"), list(product(KINDS, ROLES)))
def test_rep_15_the_command_names_the_backend(kind: str, role: str) -> None:
    config = transfer(node(kind, role=role))
    assert config["kv_connector_extra_config"].pop("backends") == (["UCX"] if kind == "cpu" else ["LIBFABRIC"])
    assert config == {
        "kv_connector": "RoundtripConnector",
        "kv_connector_module_path": "connector.connector",
        "kv_load_failure_policy": "recompute",
        "kv_role": ROLES[role],
        "kv_buffer_device": "cpu" if kind == "cpu" else "cuda",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True, "kv_recompute_threshold": 64, "decoder_kv_blocks_ttl": 480, "kv_lease_duration": 30,
        },
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_rep_15_the_backend_follows_the_interfaces_and_has_a_known_name(kind: str) -> None:
    """A typo would be an unknown member here; that NIXL takes the name is in test_preflight_probes.py."""
    for interfaces in (0, 1, 16, 32):
        (name,) = transfer(node(kind, efa_interfaces=interfaces))["kv_connector_extra_config"]["backends"]
        assert launch.Backend(name) is (launch.Backend.LIBFABRIC if interfaces else launch.Backend.UCX)
    with pytest.raises(ValueError, match="LIBFABRICK"):
        launch.Backend("LIBFABRICK")


@pytest.mark.parametrize("kind", KINDS)
def test_both_roles_run_one_image_and_differ_in_one_word(kind: str) -> None:
    prefill, decode = (launch.argv(node(kind, role=role), DEFAULTS, HOST) for role in ROLES)
    assert [word.replace("kv_producer", "kv_consumer") for word in prefill] == decode
    environments = [launch.environment(node(kind, role=role), DEFAULTS, HOST, {}) for role in ROLES]
    assert environments[0] == environments[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_answers_its_peers_and_nobody_else(kind: str) -> None:
    line, environment = launch.argv(node(kind), DEFAULTS, HOST), launch.environment(node(kind), DEFAULTS, HOST, {})
    assert option(line, "--host") == "10.0.0.5" and option(line, "--port") == "8000"
    assert (
        environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.5"
        and environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    )
    assert "0.0.0.0" not in " ".join([*line, *environment.values()])
    assert "VLLM_SERVER_DEV_MODE" not in environment


@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_from_this_disk(kind: str) -> None:
    line, environment = launch.argv(node(kind), DEFAULTS, HOST), launch.environment(node(kind), DEFAULTS, HOST, {})
    assert option(line, "--model") == HOST.model and option(line, "--served-model-name") == "qwen3"
    assert environment["HF_HUB_OFFLINE"] == "1" and environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment[TUNABLES_FILE_ENV] == "/run/kv-roundtrip/tunables.json"


def test_efa_is_never_left_to_chance() -> None:
    """Without FI_PROVIDER, libfabric takes TCP and reports success."""
    for kind, interfaces in product(KINDS, (1, 16)):
        environment = launch.environment(
            node(kind, efa_interfaces=interfaces), DEFAULTS, HOST, {"LD_LIBRARY_PATH": "/a:/b"}
        )
        assert environment["FI_PROVIDER"] == "efa"
        assert environment["LD_LIBRARY_PATH"] == "/opt/amazon/efa/lib:/a:/b"
        assert ("FI_EFA_USE_DEVICE_RDMA" in environment) == (kind == "neuron")
        assert not any(name.startswith("UCX_") for name in environment)
    neuron = launch.environment(node("neuron"), DEFAULTS, HOST, {})
    assert neuron["FI_EFA_ENABLE_SHM_TRANSFER"] == "0" and neuron["FI_EFA_USE_DEVICE_RDMA"] == "1"


def test_ucx_over_tcp_takes_the_interface_that_peers_reach() -> None:
    environment = launch.environment(node("cpu"), DEFAULTS, HOST, {})
    assert environment["UCX_NET_DEVICES"] == "ens5" and environment["UCX_TLS"] == "tcp,self,sm"
    assert not any(name.startswith("FI_") for name in environment)


def test_accelerators_take_a_tensor_parallel_size_and_the_cpu_its_own_arguments() -> None:
    for kind, size in (("cuda", "8"), ("neuron", "64")):
        line = launch.argv(node(kind), DEFAULTS, HOST)
        assert option(line, "--tensor-parallel-size") == size
        assert "--enforce-eager" not in line and "--dtype" not in line
        assert "OMP_NUM_THREADS" not in launch.environment(node(kind), DEFAULTS, HOST, {})
    line, environment = launch.argv(node("cpu"), DEFAULTS, HOST), launch.environment(node("cpu"), DEFAULTS, HOST, {})
    assert "--tensor-parallel-size" not in line and "--enforce-eager" in line and option(line, "--dtype") == "float32"
    assert environment["OMP_NUM_THREADS"] == "4" and environment["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_a_model_length_only_where_one_is_set() -> None:
    assert "--max-model-len" not in launch.argv(node(), DEFAULTS, HOST)
    assert option(launch.argv(node(max_model_len=32_768), DEFAULTS, HOST), "--max-model-len") == "32768"


def test_every_engine_tunable_changes_the_command_or_the_environment() -> None:
    """A value that nothing passes on would be a setting that does nothing."""
    others: dict[str, Value] = {
        "round_trip": False, "kv_recompute_threshold": 1, "decoder_kv_blocks_ttl": 999, "kv_lease_duration": 99,
        "block_size": 64, "nixl_progress_delay": 5, "kv_cache_gib": 2, "log_level": "debug",
    }  # fmt: skip
    read = {p.name for p in PARAMETERS if {Reader.PREFILL, Reader.DECODE} & set(p.readers)}
    assert set(others) >= {
        name for name in read if next(p for p in PARAMETERS if p.name == name).apply is Apply.RESTART
    }
    for name, value in others.items():
        changed = Tunables.of({name: value})
        before, after = (
            (launch.argv(node("cpu"), values, HOST), launch.environment(node("cpu"), values, HOST, {}))
            for values in (DEFAULTS, changed)
        )
        assert before != after, name


@pytest.mark.parametrize(
    ("changes", "tunables", "words"),
    [
        ({"role": "router", "accelerator": "none"}, {}, "role is router"),
        ({"accelerator": "none"}, {}, "accelerator none"),
        (
            {"accelerator": "cpu", "efa_interfaces": 0},
            {"block_size": 48},
            r"multiples of 32.*/kv-roundtrip/block_size to 32",
        ),
        ({}, {"block_size": 8}, "multiples of 16.*to 16"),
        ({"tensor_parallel": 16}, {}, "tensor_parallel is 16 on a node with 8 GPUs"),
    ],
)
def test_what_vllm_would_refuse_late_is_refused_at_once(
    changes: dict[str, Any], tunables: dict[str, Any], words: str
) -> None:
    with pytest.raises(LaunchError, match=f"{words}.*"):
        launch.argv(node(**changes), Tunables.of(tunables), HOST)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A CPU node whose metadata service says it is 127.0.0.1, with weights and tunables."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")
    (tmp_path / "tunables.json").write_text(json.dumps({"block_size": "64", "round_trip": "false"}))
    with serving(usual("i-1", "127.0.0.1")) as service:
        (tmp_path / "node.json").write_text(json.dumps(node_values("cpu", role="decode", metadata_url=service.url)))
        kept = {name: text for name, text in os.environ.items() if not name.startswith("KVR_")}
        names = {"KVR_NODE_CONFIG": str(tmp_path / "node.json"), "KVR_RUN": str(tmp_path), "KVR_STATE": str(tmp_path)}
        yield tmp_path, {**kept, **names}


def start(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runtime.engine", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)


def test_print_shows_what_would_start(place: tuple[Path, dict[str, str]]) -> None:
    folder, environ = place
    done = start({**environ, "HF_TOKEN": "secret"}, "--print")
    assert done.returncode == 0 and done.stderr == "" and "secret" not in done.stdout
    shown = json.loads(done.stdout)
    assert option(shown["argv"], "--model") == str(folder / "weights")
    assert option(shown["argv"], "--block-size") == "64" and option(shown["argv"], "--host") == "127.0.0.1"
    assert json.loads(option(shown["argv"], "--kv-transfer-config"))["kv_role"] == "kv_consumer"
    assert option(shown["argv"], "--dtype") == best_dtype(cpu_flags())
    assert shown["environment"]["UCX_NET_DEVICES"] == "lo"
    assert shown["environment"][TUNABLES_FILE_ENV] == str(folder / "tunables.json")


def test_the_environment_wins_over_the_file(place: tuple[Path, dict[str, str]]) -> None:
    _, environ = place
    shown = json.loads(start({**environ, "KVR_BLOCK_SIZE": "96"}, "--print").stdout)
    assert option(shown["argv"], "--block-size") == "96"


def test_it_becomes_vllm(place: tuple[Path, dict[str, str]]) -> None:
    """A package of vLLM's name stands before the real one: it says what it was started with, in the same process."""
    folder, environ = place
    package = folder / "stub" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").touch()
    (package / "api_server.py").write_text(
        "import json, os, sys\nprint(json.dumps([os.getpid(), sys.argv[1:], os.environ['VLLM_NIXL_SIDE_CHANNEL_PORT']]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "runtime.engine"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environ, "PYTHONPATH": f"{folder / 'stub'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    pid, argv, port = json.loads(stdout)
    assert pid == child.pid and port == "5600" and option(argv, "--port") == "8000"
    assert "decode engine of ami-0123 on 127.0.0.1:8000" in stderr


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("node.json", None, "user data writes it"),
        ("node.json", "{}", "role is missing"),
        ("tunables.json", None, "kv-roundtrip-tunables writes that file"),
        ("tunables.json", '{"block_size": "many"}', "block_size is 'many'"),
        ("tunables.json", '{"block_size": "33"}', "multiples of 32"),
        ("weights/config.json", None, "kv-roundtrip-weights downloads them"),
    ],
)
def test_exit_code_2_and_a_hint(place: tuple[Path, dict[str, str]], file: str, text: str | None, words: str) -> None:
    folder, environ = place
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    done = start(environ)
    assert done.returncode == 2 and done.stdout == ""
    assert words in done.stderr and "hint: " in done.stderr and "Traceback" not in done.stderr


def test_a_model_that_lies_elsewhere_on_the_disk(
    place: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = place
    monkeypatch.setenv("KVR_STATE", str(folder / "none"))
    assert engine.model_folder(node("cpu", model=str(folder / "weights"))) == folder / "weights"
    assert engine.model_folder(replace(node("cpu"), model="weights")) is None
