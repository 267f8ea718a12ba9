"""A `systemctl` that says one state of every unit: containers and CI have none that runs."""

from pathlib import Path

import pytest


def says(monkeypatch: pytest.MonkeyPatch, folder: Path, state: str, load: str = "loaded") -> None:
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    command = place / "systemctl"
    command.write_text(f"#!/bin/sh\necho LoadState={load}\necho ActiveState={state}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(place), prepend=":")
