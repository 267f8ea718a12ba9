"""A child process that never outlives us: started in its own group, stopped with a limit, told to die with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """One process and whatever it starts. Output goes to `log`."""

    def __init__(self, name: str, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._environ = dict(environ)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it ended between fork and here
                os._exit(1)

        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def kill(self) -> None:
        """SIGKILL to the process and all it started, as a crash would end them."""
        self._signal(signal.SIGKILL)
        self._wait(10)

    def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL after `seconds`."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            self._wait(seconds)
        # The group may hold children whose parent is gone.
        self._signal(signal.SIGKILL)
        self._wait(10)

    def last_lines(self, number: int = 15) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-number:])

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, which)

    def _wait(self, seconds: float) -> None:
        if self._process is None:
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._process.poll()
            if not _group_exists(self._process.pid):
                return
            time.sleep(0.05)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
