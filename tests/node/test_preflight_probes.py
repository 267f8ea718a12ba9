"""The probes on real commands, files and sockets, and the NIXL of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import fabric_checks
from runtime.launch import Backend
from runtime.probes import Machine, Output, Reach
from runtime.verdict import Verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.chdir(ROOT)
    return Machine()


def tool(folder: Path, body: str) -> list[str]:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


def test_a_command_that_answers(machine: Machine, tmp_path: Path) -> None:
    output = machine.run(tool(tmp_path, 'echo "$A"; echo two >&2; exit 3'), 10, {"A": "one"})
    assert output == Output(3, "one\n", "two\n") and output.said == "two" and not output.ok


def test_a_command_that_hangs_is_ended_with_its_children(machine: Machine, tmp_path: Path) -> None:
    began = time.monotonic()
    output = machine.run(tool(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 60 & echo $! > {tmp_path}/child; wait"), 0.5)
    assert output.fault == "tool gave no answer in 0.5 s" and output.said == output.fault
    assert time.monotonic() - began < 10
    for name in ("pid", "child"):
        stat = Path(f"/proc/{(tmp_path / name).read_text().strip()}/stat")
        # Nobody may wait for an orphan here, so that it stays as a zombie.
        assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_what_can_not_be_run_has_a_fault(machine: Machine, tmp_path: Path) -> None:
    assert machine.run(["no-such-tool"], 1).fault == "no-such-tool is not installed"
    plain = tmp_path / "plain"
    plain.write_text("text")
    assert machine.run([str(plain)], 1).fault == f"{plain} can't be run: Permission denied"


def test_garbage_is_shown_as_one_readable_line(machine: Machine, tmp_path: Path) -> None:
    output = machine.run(tool(tmp_path, "head -c 100000 /dev/urandom; exit 1"), 10)
    assert output.code == 1 and len(output.said) <= 160 and output.said.isprintable()
    assert machine.run(tool(tmp_path, "exit 4"), 10).said == "exit code 4 and no output"


def test_files_and_folders(machine: Machine, tmp_path: Path) -> None:
    assert machine.text(tmp_path / "none") == "" and machine.names(tmp_path / "none") == []
    (tmp_path / "uverbs0").write_bytes(b"\xff")
    assert machine.text(tmp_path / "uverbs0") and machine.names(tmp_path, "uverbs*") == ["uverbs0"]
    space = machine.space(tmp_path)
    assert space and space.used == 1 and space.free > 0
    later = machine.space(tmp_path / "a" / "b")
    assert later and later.used == 0 and later.free > 0


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port that takes no more connections and refuses none, as behind a security group."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_reach(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert machine.reach("127.0.0.1", port, 2) is Reach.OPEN
    assert machine.reach("127.0.0.1", port, 2) is Reach.REFUSED
    with full_listener() as port:
        assert machine.reach("127.0.0.1", port, 0.5) is Reach.TIMED_OUT
    # A multicast address has no route for TCP.
    assert machine.reach("224.0.0.1", 80, 2) is Reach.NO_ROUTE
    assert machine.reach("no such name", 80, 2) is Reach.UNKNOWN_NAME


def probe(machine: Machine, backend: str, seconds: float = 60) -> Output:
    argv = [sys.executable, "-m", "runtime.nixl_probe", backend]
    return machine.run(argv, seconds, {"NIXL_LOG_LEVEL": "INFO"})


@pytest.mark.skipif(os.path.exists("/opt/amazon/efa"), reason="this machine has EFA")  # noqa: PTH110
def test_libfabric_without_its_libraries_names_them(machine: Machine) -> None:
    result = fabric_checks.nixl(Backend.LIBFABRIC, 16, probe(machine, "LIBFABRIC"))
    assert result.verdict is Verdict.FAIL
    assert result.seen.startswith("unsupported backend LIBFABRIC: ") and "libfabric.so.1" in result.seen


def test_rep_15_a_typo_in_the_backend_fails(machine: Machine) -> None:
    """NIXL only logs a warning and goes on without it."""
    output = probe(machine, "LIBFABRICK")
    assert output.code == 1
    result = fabric_checks.nixl("LIBFABRICK", 16, output)
    assert result.verdict is Verdict.FAIL and result.seen.startswith("NIXL has no backend LIBFABRICK (it has ")


def test_a_probe_that_hangs_or_dies_is_a_verdict() -> None:
    hung = fabric_checks.nixl(Backend.UCX, 0, Output(fault="python gave no answer in 120 s"))
    died = fabric_checks.nixl(Backend.UCX, 0, Output(-11, "", ""))
    broke = fabric_checks.nixl(Backend.UCX, 0, Output(1, "", "No module named runtime"))
    assert [result.verdict for result in (hung, died, broke)] == [Verdict.FAIL] * 3
    assert "no answer" in hung.seen and "signal 11" in died.seen and "No module named runtime" in broke.seen
