"""The emulator as a process of its own, for tests: moto's changes stay out of theirs."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from tests.emulator.api import CREDENTIALS

REGION = "us-east-2"
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Running:
    endpoint: str

    def client(self, service: str, region: str = REGION) -> Any:
        return _client(service, region, self.endpoint)

    def report(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.endpoint}/emulator/report", timeout=10) as answer:
            report: dict[str, Any] = json.load(answer)
            return report


@functools.cache
def _client(service: str, region: str, endpoint: str) -> Any:
    """A client takes longer to make than to use."""
    return boto3.client(service, region_name=region, endpoint_url=endpoint, **CREDENTIALS)


@contextmanager
def running() -> Iterator[Running]:
    """Ends with the caller, also when that is killed."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-W", "ignore", "-m", "tests.emulator", "--port", "0", "--until-eof"],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin and process.stdout
    try:
        words = process.stdout.readline()
        assert words.startswith("emulator: "), f"the emulator did not start: {words!r}"
        yield Running(words.removeprefix("emulator: ").strip())
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
