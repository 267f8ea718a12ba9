"""Units and boot scripts: valid for systemd and shellcheck, and in step with each other."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INSTALLED = "/opt/kv-roundtrip"
UNITS = sorted((ROOT / "runtime" / "units").glob("*.service"))
SCRIPTS = sorted((ROOT / "runtime" / "boot").glob("*.sh"))


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of the Debian package systemd"
)
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # Programs are looked for where the image has them; here the checkout stands in.
        (tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, str(ROOT)))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "kv-roundtrip" in line]
    assert (done.returncode, ours) == (0, [])


def test_shellcheck_has_nothing_to_say() -> None:
    checker = Path(sys.executable).parent / "shellcheck"
    scripts = [*SCRIPTS, *sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_what_exists_after_what_it_requires(unit: Path) -> None:
    given = read(unit)
    command = given["Service"]["ExecStart"].split()
    if command[1:2] == ["-m"]:
        assert command[0] == f"{INSTALLED}/.venv/bin/python"
        assert (ROOT / (command[2].replace(".", "/") + ".py")).exists()
    else:
        assert (ROOT / command[0].removeprefix(f"{INSTALLED}/")).stat().st_mode & 0o111
    required = set(given["Unit"].get("Requires", "").split())
    assert required <= set(given["Unit"].get("After", "").split())
    assert required <= {other.name for other in UNITS}


def test_engines_lock_memory_and_stop_starting_after_some_failures() -> None:
    engine = read(ROOT / "runtime" / "units" / "kv-roundtrip-engine.service")
    assert engine["Service"]["LimitMEMLOCK"] == "infinity"
    # vLLM ends with 0 when one of its processes has died; 2 is a configuration that is wrong at every start.
    assert engine["Service"]["Restart"] == "always"
    assert engine["Service"]["RestartPreventExitStatus"] == "2"
    assert int(engine["Unit"]["StartLimitBurst"]) <= 5
    assert int(engine["Unit"]["StartLimitIntervalSec"]) >= 600
    preflight = read(ROOT / "runtime" / "units" / "kv-roundtrip-preflight.service")
    assert preflight["Service"]["LimitMEMLOCK"] == engine["Service"]["LimitMEMLOCK"]


def test_scripts_start_units_that_exist() -> None:
    named = {name for script in SCRIPTS for name in re.findall(r"kv-roundtrip-[a-z]+\.service", script.read_text())}
    assert named
    assert named <= {unit.name for unit in UNITS}
