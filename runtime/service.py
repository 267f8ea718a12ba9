"""A unit of this machine, as systemd sees it."""

from __future__ import annotations

import subprocess

FAILED = "failed"
"""It has failed as often as it may, or in a way that starting it again does not heal."""
INACTIVE = "inactive"
"""It was stopped, or something that it requires did not come."""
_LIMIT_S = 10.0


def state(unit: str) -> str:
    """As `systemctl is-active` says it, "activating" between two starts; "" where systemd has no such unit, or is not there."""
    command = ["systemctl", "show", "--property=LoadState,ActiveState", unit]
    try:
        done = subprocess.run(command, check=False, timeout=_LIMIT_S, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    shown = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return shown.get("ActiveState", "") if shown.get("LoadState") == "loaded" else ""
