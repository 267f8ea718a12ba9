"""Figures in docs/deploy.md are those of the code."""

from __future__ import annotations

import json
import re

import pytest

from stacks.config import paths
from stacks.plan import plan
from tests.cloud.synth import PROFILES, ROOT, config

DEPLOY = (ROOT / "docs" / "deploy.md").read_text()


@pytest.mark.parametrize("profile", PROFILES)
def test_cost_of_a_profile(profile: str) -> None:
    given = json.loads(json.dumps(plan(config(profile), [])))
    total = given["other_hourly_usd"] + sum(one["count"] * one["hourly_usd"] for one in given["machines"])
    (row,) = [line for line in DEPLOY.splitlines() if line.startswith(f"| `{profile}` |")]
    assert row.endswith(f"| {total:.2f} |")


def test_every_setting_that_the_page_names_exists() -> None:
    known = {*paths(), *(path.partition(".")[0] for path in paths())}
    named = re.findall(r"-c '?([a-z_.]+)=", DEPLOY)
    assert named
    assert {name for name in named if not name.startswith("tunables.") and name not in ("profile", *known)} == set()
