import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import fleet as fleet_module
from runtime.fleet import Fleet, FleetError, FleetOptions, require_free
from runtime.parameters import ParameterError
from tests.node.children import SLOW, STUBBORN, environment, is_alive, python, until

# A real router whose engines never answer: it waits until it is told to end.
WAITING = """
import sys, time
from runtime import fleet as fleet_module
from runtime.fleet import Fleet, FleetOptions
from runtime.local import interrupt_on_signals
interrupt_on_signals()
fleet = Fleet(FleetOptions(model="/nowhere"))
for engine, code in zip(fleet.engines, sys.argv[1:]):
    engine._argv = [sys.executable, "-c", code]
with fleet:
    pass
"""


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("kv-roundtrip-*"))


def test_a_taken_port_is_named_before_anything_is_made(taken: int) -> None:
    before = folders()
    with pytest.raises(FleetError, match=rf"^port {taken} can't be used: Address already in use\. hint: .*--port$"):
        Fleet(FleetOptions(model="/nowhere", port=taken))
    assert folders() == before


def test_require_free(taken: int) -> None:
    with pytest.raises(FleetError, match=str(taken)):
        require_free(taken)
    require_free(0)


def test_every_process_has_a_port_of_its_own() -> None:
    fleet = Fleet(FleetOptions(model="/nowhere", prefill=3, decode=4))
    ports = [server.port for server in fleet.servers]
    assert len(fleet.prefill) == 3 and len(fleet.decode) == 4 and len(set(ports)) == 8
    assert fleet.router_url == f"http://127.0.0.1:{fleet.router.port}"


def test_a_fleet_that_was_only_built_leaves_nothing() -> None:
    before = folders()
    fleet = Fleet(FleetOptions(model="/nowhere"))
    fleet.stop()
    assert folders() == before


def test_a_block_size_that_no_cpu_engine_has_is_refused_before_anything_is_made() -> None:
    with pytest.raises(FleetError, match=r"block_size is 16 .*hint: set 32"):
        Fleet(FleetOptions(model="/nowhere", values={"block_size": 16}))


def test_a_bad_tunable_is_named() -> None:
    with pytest.raises(ParameterError, match="block_size"):
        Fleet(FleetOptions(model="/nowhere", values={"block_size": 1}))


def test_the_plugins_asked_for_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(project["entry-points"][fleet_module.PLUGIN_GROUP]) == fleet_module.PLUGINS


def test_a_project_that_is_not_installed_is_an_error_not_a_slow_system(monkeypatch: pytest.MonkeyPatch) -> None:
    before = folders()
    fleet = Fleet(FleetOptions(model="/nowhere"))
    monkeypatch.setattr(sys, "path", [])
    with (
        pytest.raises(FleetError, match=r"kv_roundtrip_streaming: this project is not installed .*setup\.sh local"),
        fleet,
    ):
        pass
    assert folders() == before


def test_an_engine_that_cannot_start_is_reported_with_its_last_lines() -> None:
    before = folders()
    fleet = Fleet(FleetOptions(model="/nowhere"))
    for engine in fleet.engines:
        engine._argv = python("import sys; sys.exit('no such model: /nowhere')")
    with (
        pytest.raises(FleetError, match=r"-0 ended while it started\. Its last lines:\nno such model: /nowhere"),
        fleet,
    ):
        pass
    assert not any(server.is_running for server in fleet.servers)
    assert folders() == before


def test_stale_folders_of_killed_runs_go_and_those_of_running_ones_stay() -> None:
    gone = subprocess.Popen(python("pass"))
    gone.wait()
    root = Path(tempfile.gettempdir())
    stale, living = root / f"kv-roundtrip-{gone.pid}-abc", root / f"kv-roundtrip-{os.getpid()}-abc"
    for folder in (stale, living):
        folder.mkdir()
    try:
        fleet = Fleet(FleetOptions(model="/nowhere"))
        for server in fleet.servers:
            server._argv = python("pass")
        with pytest.raises(FleetError), fleet:
            pass
        assert not stale.exists() and living.exists()
    finally:
        living.rmdir()


@pytest.mark.parametrize(
    ("which", "engine"), [(signal.SIGINT, SLOW), (signal.SIGTERM, SLOW), (signal.SIGKILL, STUBBORN)]
)
def test_no_signal_leaves_a_process_or_a_folder(which: signal.Signals, engine: str, tmp_path: Path) -> None:
    """Twice, as an impatient hand at Ctrl-C does."""
    environ = {**environment(), "TMPDIR": str(tmp_path)}
    command = [*python(WAITING), engine, engine]
    parent = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    logs = "kv-roundtrip-*/*.log"
    until(lambda: sum("up" in log.read_text() for log in tmp_path.glob(logs)) >= 2, 20)
    children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    assert len(children) == 4, "two engines, the router and the janitor"
    parent.send_signal(which)
    time.sleep(0.3)
    parent.send_signal(which)
    parent.wait(30)
    until(lambda: not any(map(is_alive, children)) and not list(tmp_path.iterdir()), 20)
