"""Templates of a configuration, synthesised in this process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from stacks.config import Config
from stacks.deployment import Deployment, configuration
from stacks.nag import add_checks

ROOT = Path(__file__).parents[2]
PINNED = {"images.engine": "ami-0123456789abcdef0", "images.router": "ami-0123456789abcdef1"}
PROFILES = ("cpu", "p5en", "trn2")

Resources = dict[str, dict[str, Any]]


def context() -> dict[str, Any]:
    given: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]
    return given


def config(profile: str = "cpu", **changes: Any) -> Config:
    """`changes` are dotted names with `__` for the dot."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return configuration({**context(), "profile": profile, **PINNED, **dotted})


def synthesise(given: Config, checked: bool = False) -> dict[str, dict[str, Any]]:
    """Template by stack's kind: network, images, parameters, engines, routing, observability. `checked`: cdk-nag too."""
    with tempfile.TemporaryDirectory() as folder:
        app = cdk.App(outdir=folder, context={name: value for name, value in context().items() if name.startswith("@")})
        deployment = Deployment(app, given)
        if checked:
            add_checks(app, deployment)
        app.synth()
        return {
            stack.stack_name.removeprefix(f"{given.name}-"): json.loads(
                (Path(folder) / f"{stack.stack_name}.template.json").read_text()
            )
            for stack in deployment.stacks
        }


@cache
def of_profile(profile: str) -> dict[str, dict[str, Any]]:
    return synthesise(config(profile))


def of_type(template: Mapping[str, Any], kind: str) -> Resources:
    """Properties by logical id."""
    return {
        name: resource.get("Properties", {})
        for name, resource in template["Resources"].items()
        if resource["Type"] == f"AWS::{kind}"
    }


def one(template: Mapping[str, Any], kind: str, part: str = "") -> dict[str, Any]:
    """The only resource of its kind whose logical id has `part` in it."""
    found = [properties for name, properties in of_type(template, kind).items() if part in name]
    assert len(found) == 1, (kind, part, len(found))
    return found[0]


def text(value: Any) -> str:
    """A joined, base64-marked or plain text; what only the deployment knows stands as `?`."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and "Fn::Base64" in value:
        return text(value["Fn::Base64"])
    if isinstance(value, dict) and "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(text(part) for part in parts)
    return "?"
