"""What the app says a deployment takes, as it wrote it to `plan.json` beside the templates."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PlanError(ValueError):
    """The text names the file and what to do."""


@dataclass(frozen=True, slots=True)
class Machines:
    role: str
    type: str
    count: int
    vcpus: int
    quota_code: str
    hourly_usd: float | None
    """Of one; None where nobody looked it up."""

    @property
    def is_engine(self) -> bool:
        return self.role != "router"


@dataclass(frozen=True, slots=True)
class Capacity:
    kind: str
    """on-demand, reservation or block."""
    id: str
    ends_at: str
    """Of a block, like 2027-03-01T11:30Z."""


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    region: str
    zone_id: str
    """Of the engines."""
    machines: tuple[Machines, ...]
    other_hourly_usd: float
    images: Mapping[str, str]
    """engine and router -> AMI, "" where none is pinned."""
    capacity: Capacity
    stacks: tuple[str, ...]
    bootstrap_version: int
    """The least that the assembly asks of the bootstrap stack."""

    @property
    def hourly_usd(self) -> float:
        """Of what has a known price."""
        return self.other_hourly_usd + sum((one.hourly_usd or 0) * one.count for one in self.machines)

    @property
    def unpriced(self) -> list[str]:
        return sorted({one.type for one in self.machines if one.hourly_usd is None})

    @property
    def is_pinned(self) -> bool:
        return all(self.images.values())


def arguments(program: str, about: str, argv: Sequence[str]) -> argparse.Namespace:
    """Of a script that looks at a plan and asks: `assembly` and `yes`."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--assembly", type=Path, default=Path("cdk.out"), help="folder that cdk synth wrote")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args(argv)


def read(assembly: Path) -> Plan:
    """Raises `PlanError`."""
    try:
        given = json.loads((assembly / "plan.json").read_text())
        manifest = json.loads((assembly / "manifest.json").read_text())
        return _plan(given, manifest)
    except OSError as error:
        raise PlanError(f"{error.filename}: {error.strerror}. hint: scripts/deploy.sh makes it") from None
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"{assembly}: {type(error).__name__} {error}. hint: remove the folder and start again"
        ) from None


def _plan(given: Mapping[str, Any], manifest: Mapping[str, Any]) -> Plan:
    asked = [
        artifact.get("properties", {}).get("requiresBootstrapStackVersion", 0)
        for artifact in manifest["artifacts"].values()
    ]
    return Plan(
        name=given["name"],
        region=given["region"],
        zone_id=given["zone_id"],
        machines=tuple(Machines(**one) for one in given["machines"]),
        other_hourly_usd=given["other_hourly_usd"],
        images=dict(given["images"]),
        capacity=Capacity(**given["capacity"]),
        stacks=tuple(given["stacks"]),
        bootstrap_version=max(asked, default=0),
    )
