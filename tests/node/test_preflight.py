"""Whole preflights on recorded outputs: the right verdict and the right words of each. And `main`, on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.preflight import main, survey
from runtime.probes import Reach
from runtime.verdict import Result, Verdict
from tests.recorded.load import FOLDER, RecordedMachine, node, node_values

ROOT = Path(__file__).parents[2]


def results(machine: RecordedMachine, kind: str = "cuda", **changes: Any) -> dict[str, Result]:
    return {result.name: result for result in survey(node(kind, **changes), machine)}


def failing(found: dict[str, Result]) -> set[str]:
    return {name for name, result in found.items() if not result.ok}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    for variable in ("KVR_RUN", "KVR_STATE"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("KVR_NODE_CONFIG", str(tmp_path / "node.json"))
    (tmp_path / "node.json").write_text(json.dumps(node_values("cpu", metadata_url="http://127.0.0.1:9")))
    return tmp_path


def test_a_p5en_that_is_well_passes_every_check() -> None:
    machine = RecordedMachine("p5en")
    found = results(machine)
    assert [result.line for result in found.values() if result.verdict is not Verdict.PASS] == []
    assert list(found) == [
        "driver", "fabricmanager", "efa", "provider", "hugepages", "memlock", "address", "nixl", "peers", "clock", "disk",
    ]  # fmt: skip
    assert found["provider"].seen == "provider efa on 16 of 16 rails, libfabric 2.7.0"
    assert found["driver"].seen == "8 x NVIDIA H200, driver 595.91"
    assert machine.paused == []


def test_a_trn2_that_is_well_passes_every_check() -> None:
    found = results(RecordedMachine("trn2", "p5en"), "neuron")
    assert [result.line for result in found.values() if result.verdict is not Verdict.PASS] == []
    assert found["driver"].seen == "16 Neuron devices" and "fabricmanager" not in found


def test_a_cpu_node_is_asked_for_five_things_only() -> None:
    found = results(RecordedMachine("cpu", "low_memlock"), "cpu")
    assert list(found) == ["memlock", "address", "nixl", "clock", "disk"]
    assert failing(found) == set()
    assert found["memlock"].verdict is Verdict.WARN and "8 MiB" in found["memlock"].seen
    assert found["clock"].verdict is Verdict.WARN and "506 Cannot talk to daemon" in found["clock"].seen
    assert found["nixl"].seen == "NIXL 1.5.1 made UCX"


def test_a_router_needs_a_clock() -> None:
    assert list(results(RecordedMachine("p5en"), "cpu", role="router", accelerator="none")) == ["clock"]


def test_one_rail_of_sixteen() -> None:
    found = results(machine := RecordedMachine("one_rail", "p5en"))
    assert failing(found) == {"efa", "provider", "nixl"}
    assert found["efa"].seen == "1 on the PCI bus, 1 in /sys/class/infiniband, 1 uverbs; expected 16"
    assert "launch template" in found["efa"].fix
    assert found["provider"].seen.startswith("provider efa on 1 of 16 rails")
    assert machine.paused == [5.0, 5.0, 5.0]


def test_efa_that_comes_up_late_passes() -> None:
    machine = RecordedMachine("tcp_only", "p5en")
    machine.later = {"infiniband": "p5en", "uverbs": "p5en"}
    assert results(machine)["efa"].ok
    assert machine.paused == [5.0]


def test_tcp_only() -> None:
    found = results(RecordedMachine("tcp_only", "p5en"))
    assert failing(found) == {"efa", "provider", "nixl"}
    assert "16 on the PCI bus, 0 in /sys/class/infiniband" in found["efa"].seen and "modprobe efa" in found["efa"].fix
    assert (
        "no provider efa (fi_getinfo: -61), TCP only: " in found["provider"].seen
        and "tcp;ofi_rxm" in found["provider"].seen
    )
    assert "libfabric" not in found["provider"].fix
    assert (
        found["nixl"].seen == "NIXL 1.5.0 made LIBFABRIC over tcp, not EFA" and "FI_PROVIDER=efa" in found["nixl"].fix
    )


def test_no_driver() -> None:
    found = results(RecordedMachine("no_driver", "p5en"))
    assert failing(found) == {"driver", "nixl"}
    assert (
        "no driver: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
        in found["driver"].seen
    )
    assert "image" in found["driver"].fix
    assert found["nixl"].seen.startswith("unsupported backend LIBFABRIC: ") and "libcuda.so.1" in found["nixl"].seen
    assert "library of the system is missing" in found["nixl"].fix


def test_no_neuron_driver() -> None:
    class Machine(RecordedMachine):
        def _find(self, name: str) -> Any:
            return super()._find("neuron_ls_no_driver" if name == "neuron_ls" else name)

    found = results(Machine("trn2", "p5en"), "neuron")
    assert failing(found) == {"driver"}
    assert "Make sure aws-neuronx-dkms is installed" in found["driver"].seen


def test_wrong_libfabric() -> None:
    found = results(RecordedMachine("wrong_libfabric", "p5en"))
    assert failing(found) == {"provider"}
    assert found["provider"].seen.startswith("libfabric 1.22.0, provider efa on 16 of 16 rails; NIXL 1.5.")
    assert "wrong libfabric" in found["provider"].fix and "EFA installer 1.5" in found["provider"].fix
    assert "TCP" not in found["provider"].seen


def test_low_memlock() -> None:
    found = results(RecordedMachine("low_memlock", "p5en"))
    assert failing(found) == {"memlock"}
    assert found["memlock"].seen == "at most 8 MiB can be locked" and "LimitMEMLOCK=infinity" in found["memlock"].fix


def test_a_bare_machine_is_refused_in_words() -> None:
    """Not one tool of those asked for is installed."""
    found = results(RecordedMachine("no such scenario"))
    assert failing(found) == {"driver", "efa", "provider", "memlock", "nixl"}
    assert found["driver"].seen == "no driver: nvidia-smi is not installed"
    assert found["provider"].seen == "/opt/amazon/efa/bin/fi_info is not installed"


def test_nixl_is_probed_as_the_engine_will_use_it() -> None:
    machine = RecordedMachine("p5en")
    results(machine)
    at = next(i for i, argv in enumerate(machine.asked) if "runtime.nixl_probe" in argv)
    assert machine.asked[at][-2:] == ["LIBFABRIC", "--torch"]
    assert machine.environments[at]["FI_PROVIDER"] == "efa"
    machine = RecordedMachine("cpu")
    results(machine, "cpu")
    at = next(i for i, argv in enumerate(machine.asked) if "runtime.nixl_probe" in argv)
    assert machine.asked[at][-1] == "UCX" and machine.environments[at]["UCX_NET_DEVICES"] == "ens5"


def test_peers(place: Path) -> None:
    engines = {
        "prefill": [{"url": "http://10.0.0.5:8000", "build": "a"}],
        "decode": [{"url": "http://10.0.0.6:8000", "build": "a"}],
    }
    (place / "engines.json").write_text(json.dumps(engines))
    machine = RecordedMachine("p5en")
    machine.reached = {("10.0.0.6", 8000): Reach.TIMED_OUT, ("10.0.0.6", 5600): Reach.TIMED_OUT}
    found = results(machine)["peers"]
    assert found.verdict is Verdict.FAIL
    assert "decode 10.0.0.6:8000 no answer" in found.seen and "security group" in found.fix
    machine.reached = {("10.0.0.6", 8000): Reach.REFUSED, ("10.0.0.6", 5600): Reach.REFUSED}
    assert results(machine)["peers"].line.startswith("pass")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"decode": 1}', '{"decode": [{"url": 3}]}', '{"decode": [{"url": "ftp://x"}]}']
)
def test_a_broken_list_of_peers_keeps_no_engine_from_starting(place: Path, text: str) -> None:
    (place / "engines.json").write_text(text)
    found = results(RecordedMachine("p5en"))["peers"]
    assert found.ok and found.verdict is (Verdict.WARN if text else Verdict.PASS)


def test_a_check_that_breaks_is_a_verdict_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(RecordedMachine):
        def text(self, path: Path) -> str:
            raise RuntimeError("our own fault")

    found = results(Broken("p5en"))
    assert failing(found) == {"hugepages", "memlock", "peers"}
    assert found["memlock"].seen == "the check itself broke: RuntimeError: our own fault"
    assert found["disk"].ok


def preflight(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runtime.preflight", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120)


def test_the_cpu_node_here_for_real() -> None:
    """NIXL's UCX backend is made, over the interface that has this machine's address; clock and disk are looked at."""
    done = preflight({}, "--json")
    found = {item["name"]: item for item in json.loads(done.stdout)}
    assert done.returncode == 0 and done.stderr == ""
    assert list(found) == ["memlock", "address", "nixl", "clock", "disk"]
    assert re.fullmatch(r"NIXL \d+\.\d+\.\d+ made UCX", found["nixl"]["seen"])
    assert found["clock"]["verdict"] in ("pass", "warn") and found["clock"]["seen"]
    assert found["disk"]["verdict"] == "pass" and "GB free" in found["disk"]["seen"]


def test_a_p5en_that_this_machine_is_not_is_refused(place: Path) -> None:
    """The real probes, all but the pauses: exit code 1, a line per check, no traceback."""
    (place / "node.json").write_text(
        json.dumps(node_values("cuda", metadata_url="http://127.0.0.1:9", efa_interfaces=0))
    )
    done = preflight({"PATH": ""})
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "fail  driver         no driver: nvidia-smi is not installed. fix: " in done.stdout
    assert all(re.match(r"(pass|warn|fail)  \w+ ", line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("text", [None, "{", '{"role": "prefill"}'])
def test_exit_code_2_for_a_broken_configuration(
    place: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    (place / "node.json").unlink()
    if text is not None:
        (place / "node.json").write_text(text)
    assert main([], RecordedMachine("p5en")) == 2
    said = capsys.readouterr()
    assert said.out == "" and "node.json" in said.err


def test_main_prints_a_line_per_check_and_exits_0_or_1(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "node.json").write_text(json.dumps(node_values()))
    assert main([], RecordedMachine("p5en")) == 0
    assert len(capsys.readouterr().out.splitlines()) == 11
    assert main([], RecordedMachine("low_memlock", "p5en")) == 1
    assert main(["--json"], RecordedMachine("low_memlock", "p5en")) == 1


def test_every_recording_says_where_it_is_from() -> None:
    files = list(FOLDER.rglob("*.txt"))
    assert len(files) > 30
    for path in files:
        assert re.match(r"# source: (recorded|composed|published|the layout was recorded)", path.read_text()), path
