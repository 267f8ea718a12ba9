import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from runtime.process import Child
from tests.node.children import STUBBORN, environment, is_alive, lines, python, tree, until

PARENT = """
import sys, time
from pathlib import Path
from runtime.process import Child
child = Child("child", [sys.executable, "-c", "import time; time.sleep(600)"], {}, Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def child(argv: list[str], log: Path) -> Child:
    made = Child("child", argv, dict(os.environ), log)
    made.start()
    until(lambda: bool(lines(log)))
    return made


def test_stop_ends_it_by_sigterm(log: Path) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('asked', flush=True)))\n"
    one = child(python(code + "print('up', flush=True)\ntime.sleep(600)"), log)
    assert one.is_running
    one.stop(10)
    assert not one.is_running and lines(log) == ["up", "asked"]


def test_stop_kills_what_does_not_end(log: Path) -> None:
    one = child(python(STUBBORN), log)
    pid = one.pid
    began = time.monotonic()
    one.stop(0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert pid is not None and not is_alive(pid)


def test_stop_ends_grandchildren_whose_parent_is_gone(log: Path) -> None:
    one = child(tree(), log)
    grandchild = int(lines(log)[0])
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not one.is_running)
    assert is_alive(grandchild)
    one.stop(1)
    assert not is_alive(grandchild)


def test_a_new_start_first_ends_what_a_crash_left(log: Path) -> None:
    """An engine's worker that outlives it would keep the port of the next one."""
    one = child(tree(), log)
    grandchild = int(lines(log)[0])
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not one.is_running)
    one.start()
    assert one.is_running and not is_alive(grandchild)
    until(lambda: len(lines(log)) == 2)
    one.kill()
    assert not one.is_running and not is_alive(int(lines(log)[1]))


def test_it_dies_with_a_killed_parent(log: Path) -> None:
    parent = subprocess.Popen([*python(PARENT), str(log)], stdout=subprocess.PIPE, text=True, env=environment())
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    until(lambda: not is_alive(pid), 5)


def test_stop_and_kill_of_what_never_started(log: Path) -> None:
    one = Child("child", python("pass"), {}, log)
    one.stop(1)
    one.kill()
    assert not one.is_running and one.pid is None


def test_last_lines(log: Path) -> None:
    one = child(python("print(*range(40), sep=chr(10), flush=True)"), log)
    until(lambda: not one.is_running)
    assert one.last_lines(3) == "37\n38\n39"
    one.stop(1)
