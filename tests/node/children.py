"""Real processes for the tests of this folder, and what to ask about them."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
"""Does not end on SIGTERM."""

SLOW = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(1.5))); print('up', flush=True); time.sleep(600)"
"""Takes a moment to end on SIGTERM."""

TREE = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {code!r}], stdout=-3); print(p.pid, flush=True); p.wait()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def tree(code: str = STUBBORN) -> list[str]:
    """A process that starts another one and prints its id."""
    return python(TREE.format(code=code))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def lines(log: Path) -> list[str]:
    return log.read_text().split("\n")[:-1] if log.exists() else []


def environment() -> dict[str, str]:
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
