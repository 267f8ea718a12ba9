"""Cleans up for a fleet that was killed before it could: waits for its parent's end, then ends what the parent had started.

`python -m runtime.janitor FOLDER` reads from its standard input a line `start GROUP` for each process group started and
`end GROUP` for each that ended. When the input closes, which the kernel does even after kill -9 of the parent, it ends
the groups that are left and removes FOLDER.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runtime import group

# Children are told to end by the kernel when the parent dies; engines need a moment to do it in good order.
_GRACE = 5.0


class Janitor:
    """The parent's end of it. A lost janitor is not an error: it only matters when the parent is killed too."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = dict(environ)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Before the first child."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runtime.janitor", str(self._folder)],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
            text=True,
        )

    def started(self, number: int) -> None:
        self._tell(f"start {number}")

    def ended(self, number: int) -> None:
        self._tell(f"end {number}")

    def dismiss(self) -> None:
        """Call it when everything has ended; returns when the folder is gone."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()


def left(lines: Iterable[str]) -> set[int]:
    """The groups that were started and did not end; reads to the end of `lines`. A line cut short is left out."""
    groups: set[int] = set()
    for line in lines:
        match line.split():
            case ["start", number] if line.endswith("\n"):
                groups.add(int(number))
            case ["end", number] if line.endswith("\n"):
                groups.discard(int(number))
    return groups


def main(argv: Sequence[str]) -> int:
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, signal.SIG_IGN)
    os.chdir("/")
    groups = left(sys.stdin)
    if not group.wait(groups, _GRACE):
        for number in groups:
            group.kill(number)
    shutil.rmtree(argv[0], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
