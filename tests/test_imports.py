"""Who may import whom (docs/architecture.md): read from the source, so that nothing has to be importable here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = frozenset({"connector", "router", "runtime", "scripts", "stacks", "tests", "app"})
SCHEMA = "runtime.parameters"
DYNAMIC = ("__import__", "import_module", "importlib.import_module")
UNKNOWN = "a module named at run time"


@dataclass(frozen=True)
class Rule:
    """What the files below `path` may import besides the standard library."""

    path: str
    ours: frozenset[str]
    """Our modules, each with what is below it."""
    only: frozenset[str] | None = None
    """The only packages of others; None for any but `never`."""
    never: frozenset[str] = frozenset()

    def allows(self, module: str) -> bool:
        if module == UNKNOWN:
            return False
        top = module.partition(".")[0]
        if top in OURS:
            return any(module == name or module.startswith(f"{name}.") for name in self.ours)
        if top in sys.stdlib_module_names:
            return True
        return top in self.only if self.only is not None else top not in self.never


RULES = (
    Rule("runtime/parameters.py", ours=frozenset(), only=frozenset()),
    Rule("runtime", ours=frozenset({"runtime"}), never=frozenset({"vllm", "aws_cdk"})),
    Rule("connector", ours=frozenset({"connector", SCHEMA}), only=frozenset({"vllm"})),
    Rule("router", ours=frozenset({"router", SCHEMA}), never=frozenset({"vllm", "torch", "aws_cdk"})),
    Rule(
        "stacks",
        ours=frozenset({"stacks", SCHEMA}),
        only=frozenset({"aws_cdk", "constructs", "pydantic", "cdk_nag"}),
    ),
    Rule("app.py", ours=frozenset({"stacks", SCHEMA}), only=frozenset({"aws_cdk"})),
)


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, wherever it stands; `from a import b` counts as `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC:
            name = node.args[0] if node.args else None
            text = name.value if isinstance(name, ast.Constant) else None
            yield node.lineno, text if isinstance(text, str) else UNKNOWN


def violations(root: Path, rule: Rule) -> list[str]:
    """`file:line imports module`, for every import below `rule.path` that the rule does not allow."""
    target = root / rule.path
    found = []
    for path in [target] if target.is_file() else sorted(target.rglob("*.py")):
        name = path.relative_to(root)
        package = ".".join(name.parent.parts)
        found += [
            f"{name}:{line} imports {module}" for line, module in imports(path, package) if not rule.allows(module)
        ]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.path)
def test_nothing_is_imported_against_the_rules(rule: Rule) -> None:
    assert (ROOT / rule.path).exists()
    assert violations(ROOT, rule) == []


def test_init_files_are_empty() -> None:
    found = [path for name in OURS - {"app"} for path in (ROOT / name).rglob("__init__.py")]
    assert found
    assert [str(path) for path in found if path.read_bytes()] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("router/turn.py", "import vllm"),
        ("router/turn.py", "from vllm.config import VllmConfig"),
        ("router/turn.py", "from connector.handle import Handle"),
        ("router/turn.py", "from runtime import command"),
        ("router/turn.py", "from runtime import *"),
        ("router/turn.py", "import runtime.fleet as fleet"),
        ("router/turn.py", "from ..connector import handle"),
        ("router/deep/part.py", "def late():\n    import aws_cdk.aws_ec2"),
        ("router/turn.py", "import importlib\nimportlib.import_module('vllm')"),
        ("router/turn.py", "import_module(name)"),
        ("router/turn.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vllm"),
        ("connector/handle.py", "import numpy"),
        ("connector/handle.py", "import router.handle"),
        ("stacks/nodes.py", "import boto3"),
        ("stacks/nodes.py", "from runtime.command import argv"),
        ("runtime/engine.py", "import vllm.envs"),
        ("runtime/engine.py", "from router.app import Router"),
        ("runtime/parameters.py", "import msgspec"),
        ("runtime/parameters.py", "from runtime.command import argv"),
        ("app.py", "import boto3"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, line: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{line}\n", encoding="utf-8")
    found = [text for rule in RULES if (tmp_path / rule.path).exists() for text in violations(tmp_path, rule)]
    assert found
    assert all(text.startswith(f"{path}:{line.count(chr(10)) + 1} ") for text in found)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("router/turn.py", "from . import store"),
        ("router/turn.py", "from router.store import Store"),
        ("router/turn.py", "from runtime.parameters import Tunables"),
        ("router/turn.py", "from runtime import parameters"),
        ("router/turn.py", "import msgspec"),
        ("router/turn.py", "from collections import abc"),
        ("connector/handle.py", "from vllm.config import VllmConfig"),
        ("stacks/nodes.py", "from aws_cdk import aws_ec2"),
    ],
)
def test_an_allowed_import_is_not(tmp_path: Path, path: str, line: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(f"{line}\n", encoding="utf-8")
    assert [text for rule in RULES if (tmp_path / rule.path).exists() for text in violations(tmp_path, rule)] == []
