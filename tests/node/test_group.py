import os
import subprocess
import time
from pathlib import Path

from runtime import group
from tests.node.children import STUBBORN, is_alive, python, tree, until

SEMAPHORE = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(600)
"""


def started(argv: list[str]) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        return process, process.stdout.readline().strip()


def test_members_are_the_whole_tree() -> None:
    process, child = started(tree())
    assert sorted(group.members(process.pid)) == sorted([process.pid, int(child)])
    group.kill(process.pid)
    process.wait()
    assert group.members(process.pid) == [] and not is_alive(int(child))


def test_a_zombie_is_no_member() -> None:
    process, _ = started(python("print()"))
    until(lambda: not is_alive(process.pid))
    assert Path(f"/proc/{process.pid}").exists(), "not reaped yet"
    assert group.members(process.pid) == []
    process.wait()


def test_a_group_in_a_session_of_others_is_not_ours() -> None:
    """A shell gives each of its jobs a group: such a number, used again after our child ended, must not be killed."""
    process = subprocess.Popen(python("import time; time.sleep(600)"), process_group=0)
    try:
        assert os.getpgid(process.pid) == process.pid
        assert group.members(process.pid) == []
        group.kill(process.pid, 0)
        time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_wait_gives_up_after_its_limit() -> None:
    process, _ = started(python(STUBBORN))
    began = time.monotonic()
    assert not group.wait([process.pid], 0.2)
    assert 0.2 <= time.monotonic() - began < 2
    group.kill(process.pid)
    process.wait()
    assert group.wait([process.pid], 0)


def test_kill_leaves_no_semaphore_in_shared_memory() -> None:
    process, name = started(python(SEMAPHORE))
    semaphore = Path("/dev/shm") / f"sem.{name.lstrip('/')}"
    assert semaphore.exists()
    until(lambda: any(map(group._is_tracker, group.members(process.pid))))
    group.kill(process.pid)
    process.wait()
    assert group.members(process.pid) == [] and not semaphore.exists()
