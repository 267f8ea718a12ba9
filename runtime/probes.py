"""What the preflight looks at: commands with a time limit, files, folders, ports. Nothing here judges or raises."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runtime import address
from runtime.address import AddressError, Interface

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Output:
    """What a command did. `fault` says why there is no `code`: it is not installed, or it did not end in time."""

    code: int | None = None
    stdout: str = ""
    stderr: str = ""
    fault: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def said(self) -> str:
        """One line for an operator: why it failed, in its own words where it has some."""
        if self.fault:
            return self.fault
        for line in (self.stderr + "\n" + self.stdout).splitlines():
            text = "".join(c for c in line if c.isprintable()).strip()
            if text:
                return text[:_SHOWN]
        return f"exit code {self.code} and no output"


class Reach(StrEnum):
    OPEN = "open"
    REFUSED = "refused"
    TIMED_OUT = "no answer"
    NO_ROUTE = "no route"
    UNKNOWN_NAME = "unknown name"


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes."""

    free: int
    used: int
    """By the folder itself."""


class Machine:
    """This machine. The tests have another one, which reads recorded outputs."""

    def __init__(self) -> None:
        self._interface: Interface | AddressError | None = None

    def interface(self, metadata_url: str) -> Interface | AddressError:
        """See `runtime.address.find`, asked once."""
        if self._interface is None:
            try:
                self._interface = address.find(metadata_url)
            except AddressError as error:
                self._interface = error
        return self._interface

    def run(self, argv: list[str], seconds: float, environment: Mapping[str, str] | None = None) -> Output:
        """Ends what it started, children included, when `seconds` have passed."""
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except FileNotFoundError:
            return Output(fault=f"{argv[0]} is not installed")
        except OSError as error:
            return Output(fault=f"{argv[0]} can't be run: {error.strerror}")
        with child:
            try:
                stdout, stderr = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                return Output(fault=f"{Path(argv[0]).name} gave no answer in {seconds:g} s")
            return Output(child.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))

    def text(self, path: Path) -> str:
        """ "" for a file that can't be read."""
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""

    def names(self, folder: Path, pattern: str = "*") -> list[str]:
        """None for a folder that is not there."""
        return sorted(path.name for path in folder.glob(pattern))

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def reach(self, host: str, port: int, seconds: float) -> Reach:
        try:
            with socket.create_connection((host, port), seconds):
                return Reach.OPEN
        except ConnectionRefusedError:
            return Reach.REFUSED
        except TimeoutError:
            return Reach.TIMED_OUT
        except socket.gaierror:
            return Reach.UNKNOWN_NAME
        except OSError as error:
            return Reach.TIMED_OUT if error.errno == errno.ETIMEDOUT else Reach.NO_ROUTE

    def space(self, folder: Path) -> Space | None:
        """On the disk that holds `folder`, or that will hold it; None when that can't be told."""
        present = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
        try:
            used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            return Space(shutil.disk_usage(present).free, used)
        except OSError:
            return None
