"""`python -m scripts.pin_images --profile p5en`: writes the images that the pipelines published into cdk.json, so that the next deploy
uses them. Shows old and new first. Exit codes: see `Exit`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from scripts.ask import NobodyThere, agreed

_CONFIG = Path(__file__).resolve().parent.parent / "cdk.json"
_KINDS = ("engine", "router")
_NAME = "kv-roundtrip"


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    DECLINED = 3


class PinError(RuntimeError):
    """The text is what the user reads, hint included."""


@dataclass(frozen=True, slots=True)
class Pin:
    kind: str
    old: str
    new: str
    date: str
    source: str
    """Digest of the source that it was built from."""

    def __str__(self) -> str:
        change = self.new if self.old == self.new else f"{self.old or 'none'} -> {self.new}"
        return f"{self.kind:<7} {change}  built {self.date}, source {self.source[:8] or 'unknown'}"


def published(profile: Mapping[str, Any], clients: Callable[[str], Any]) -> list[Pin]:
    """Raises `PinError`, and what boto3 raises."""
    name = profile.get("name", _NAME)
    old = profile.get("images", {})
    pins = []
    for kind in _KINDS:
        parameter = f"/{name}-images/{kind}"
        try:
            number = clients("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ParameterNotFound":
                raise
            raise PinError(
                f"{parameter} is not there: the {kind} pipeline has published nothing yet. hint: deploy the images stack, "
                "then run its pipelines; docs/deploy.md says how"
            ) from None
        wanted = [{"Name": "image-id", "Values": [number]}]
        found = clients("ec2").describe_images(Filters=wanted)["Images"]
        if not found:
            raise PinError(f"{parameter} names {number}, which is not there. hint: run the {kind} pipeline again")
        tags = {tag["Key"]: tag["Value"] for tag in found[0].get("Tags", [])}
        date = found[0].get("CreationDate", "unknown")[:16]
        pins.append(Pin(kind, old.get(kind) or "", number, date, tags.get("kv-roundtrip:source", "")))
    if len({pin.source for pin in pins}) > 1:
        words = ", ".join(f"{pin.kind} {pin.source[:8] or 'unknown'}" for pin in pins)
        raise PinError(f"the images are of different sources: {words}. hint: run both pipelines after one deploy")
    return pins


def written(text: str, profile: str, pins: Sequence[Pin]) -> str:
    """cdk.json's `text` with the images of `profile` set; everything else stays."""
    config = json.loads(text)
    chosen = config["context"]["profiles"][profile]
    chosen["images"] = {**chosen.get("images", {}), **{pin.kind: pin.new for pin in pins}}
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def pin(path: Path, profile: str, yes: bool) -> Exit:
    config = json.loads(path.read_text())
    profiles = config["context"]["profiles"]
    if profile not in profiles:
        raise PinError(f"{path} has no profile {profile!r}. hint: one of {', '.join(profiles)}")
    chosen = profiles[profile]
    pins = published(chosen, functools.cache(functools.partial(boto3.client, region_name=chosen["region"])))
    for one in pins:
        print(one)
    if all(one.old == one.new for one in pins):
        print("pinned already")
        return Exit.DONE
    if not agreed(f"Pin them for {profile} in {path.name}?", yes=yes):
        return Exit.DECLINED
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(written(path.read_text(), profile, pins))
    fresh.replace(path)
    print("pinned; the next deploy replaces the nodes of both roles")
    return Exit.DONE


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.pin_images", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("--profile", required=True, help="of cdk.json")
    parser.add_argument("--config", type=Path, default=_CONFIG, help="default: %(default)s")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    arguments = parser.parse_args(argv)
    try:
        return pin(arguments.config, arguments.profile, arguments.yes)
    except NobodyThere as error:
        print(f"pin: {error}", file=sys.stderr)
        return Exit.USAGE
    except (PinError, ClientError, BotoCoreError) as error:
        print(f"pin: {error}", file=sys.stderr)
        return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
