import os
import signal
import subprocess
from pathlib import Path

from runtime.janitor import Janitor, left
from tests.node.children import STUBBORN, environment, is_alive, python, until

PARENT = """
import sys, time
from pathlib import Path
from runtime.janitor import Janitor
from runtime.process import Child
folder = Path(sys.argv[1])
janitor = Janitor(folder, dict(__import__("os").environ))
janitor.start()
child = Child("child", [sys.executable, "-c", sys.argv[2]], {}, folder / "child.log", janitor)
child.start()
while "up" not in (folder / "child.log").read_text():
    time.sleep(0.02)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_left() -> None:
    assert left([]) == set()
    assert left(["start 5\n", "start 6\n", "end 5\n", "start 7\n"]) == {6, 7}
    assert left(["start 5\n", "end 5\n", "start 5\n"]) == {5}
    assert left(["start 5\n", "end 6\n", "nonsense\n"]) == {5}


def test_a_line_cut_short_by_the_parents_death_names_nobody() -> None:
    assert left(["start 512\n", "start 51"]) == {512}
    assert left(["start 512\n", "end 512"]) == {512}


def test_kill_9_of_the_parent_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    command = [*python(PARENT), str(folder), STUBBORN]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until(lambda: not is_alive(pid) and not folder.exists(), 15)


def test_dismiss_removes_the_folder_and_spares_groups_that_ended(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    other = subprocess.Popen(python(STUBBORN), stdout=subprocess.DEVNULL, start_new_session=True)
    janitor = Janitor(folder, environment())
    janitor.start()
    janitor.started(other.pid)
    janitor.ended(other.pid)
    janitor.dismiss()
    assert not folder.exists()
    assert other.poll() is None
    other.kill()
    other.wait()
    janitor.dismiss()
