"""`make deploy-local` as a whole, and its end by force. Takes minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from runtime import group

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 600


def _start(profile: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "scripts.deploy_local", "--profile", profile],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


# trn2 goes the same way as p5en: `make deploy-local ARGS="--profile trn2"`.
def test_profiles_deploy_change_and_go(tmp_path: Path) -> None:
    """Side by side: each has an emulator of its own, and one waits for its Node.js while the other does."""
    running = {profile: _start(profile, tmp_path) for profile in ("cpu", "p5en")}
    try:
        words = {profile: process.communicate(timeout=_LIMIT_S)[0] for profile, process in running.items()}
    finally:
        for process in running.values():
            group.kill(process.pid)
            process.wait(10)
    for profile, process in running.items():
        print(words[profile])
        assert process.returncode == 0, words[profile]
        assert "FAIL" not in words[profile] and "nothing left" in words[profile]


def _ours(folder: Path) -> list[int]:
    """Processes whose environment or command names `folder`: all that a run has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_run_that_is_ended(how: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="kvr-ended-") as name:
        folder = Path(name)
        process = _start("cpu", folder)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "CDK CLI" in line:  # it synthesises now
                    break
            time.sleep(1.0)
            os.kill(process.pid, how)
            process.wait(60)
            deadline = time.monotonic() + 30
            while _ours(folder) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert _ours(folder) == []
            assert list(folder.glob("kvr-deploy-*")) == []
            assert process.returncode != 0
        finally:
            process.stdout.close() if process.stdout else None
            group.kill(process.pid)
            process.wait(10)
