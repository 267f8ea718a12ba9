"""A process group on Linux: who is in it, and how to end it without leaving files in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PROC = Path("/proc")
_TRACKER = b"multiprocessing.resource_tracker"
_POLL = 0.05


def members(group: int) -> list[int]:
    """Process ids in `group`, which leads a session of its own, so that a number used again by others is not taken for it.

    Zombies do not count: they hold nothing, and in some containers nobody ever reaps them.
    """
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # After the name, which is in parentheses and may hold anything: state, parent, group, session.
                state, _, its_group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_group) == int(session) == group and state != "Z":
                    found.append(int(entry.name))
    return found


def wait(groups: Collection[int], seconds: float) -> bool:
    """True when nobody is left in `groups`, False when somebody is after `seconds`."""
    deadline = time.monotonic() + seconds
    while any(members(group) for group in groups):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def kill(group: int, seconds: float = 10.0) -> None:
    """SIGKILL to all in `group`; returns when they are gone, at the latest after `seconds`.

    Python's resource tracker gets it last: it removes the semaphores of those killed from /dev/shm, then ends by itself.
    """
    for pid in members(group):
        if not _is_tracker(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if not wait([group], seconds):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
