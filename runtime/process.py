"""A child process that never outlives us: started in its own group, stopped with a limit, told to die with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime import group
from runtime.janitor import Janitor

_PR_SET_PDEATHSIG = 1
_REAP_LIMIT = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """One process and whatever it starts. Output goes to `log`."""

    def __init__(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str], log: Path, janitor: Janitor | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._janitor = janitor
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
        """What an earlier run left, such as a worker whose parent crashed, is ended first: it would hold the ports."""
        self.kill()
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
        if self._janitor is not None:
            self._janitor.started(self._process.pid)

    def kill(self) -> None:
        """SIGKILL to the process and all it started, as a crash would end them."""
        if self._process is None:
            return
        group.kill(self._process.pid)
        self._process.wait(_REAP_LIMIT)
        if self._janitor is not None:
            self._janitor.ended(self._process.pid)
        self._process = None

    def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL after `seconds`."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            group.wait([self._process.pid], seconds)
        self.kill()

    def last_lines(self, number: int = 15) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-number:])
