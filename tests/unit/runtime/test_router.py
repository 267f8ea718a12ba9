"""What a router node becomes, and what systemd may start again."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aws import node
from tests.fakes.metadata import serving, usual

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("role", "address", "code", "said"),
    [
        # An interface may come up later; 2 would be the last start.
        ("router", "203.0.113.9", 1, "203.0.113.9, but no interface has that address"),
        ("decode", "127.0.0.1", 2, "kv-roundtrip-engine"),
    ],
)
def test_only_a_wrong_configuration_is_final(tmp_path: Path, role: str, address: str, code: int, said: str) -> None:
    file = tmp_path / "node.json"
    with serving(usual("i-1", address)) as metadata:
        file.write_text(json.dumps(dataclasses.asdict(node("", metadata.url, role=role))))
        done = subprocess.run(
            [sys.executable, "-m", "runtime.router"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "KVR_NODE_CONFIG": str(file)},
        )  # fmt: skip
    assert done.returncode == code and said in done.stderr
