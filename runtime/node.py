"""What a node is, as its user data wrote it down: one JSON file, read by every part of the runtime on that node.

`stacks/userdata.py` writes it; a test parses what the templates hold with `NodeConfig.parse`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

_CONFIG = Path("/etc/kv-roundtrip/node.json")
_RUN = Path("/run/kv-roundtrip")
_STATE = Path("/var/lib/kv-roundtrip")

ROLES = ("prefill", "decode", "router")
ACCELERATORS = ("cuda", "neuron", "cpu", "none")


class NodeError(ValueError):
    """The node's own configuration is missing or wrong. The text says what and where it comes from."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    deployment: str
    region: str
    role: str
    build: str
    """Image id: only engines of one build are paired."""
    parameters: str
    """Path of the tunables in Parameter Store."""
    accelerator: str
    accelerators: int
    """Devices on this node."""
    tensor_parallel: int
    efa_interfaces: int
    """0: no EFA, NIXL over UCX and TCP."""
    model: str
    weights: str
    """"hub", or s3://bucket/prefix."""
    served_name: str
    hub_token_parameter: str
    """Name of a SecureString, "" for none."""
    max_model_len: int
    """Tokens; 0 for the model's own."""
    group: str
    """Auto Scaling group."""
    launch_hook: str
    terminate_hook: str
    load_budget_s: int
    """Seconds from boot to ready, weights included."""
    engine_port: int
    side_channel_port: int
    router_port: int
    valkey: str
    """host:port, "" for none."""
    endpoint_url: str
    """"" for AWS, else an emulator."""
    metadata_url: str
    stack: str = ""
    """CloudFormation stack that made the group, which waits for a signal from each node; "" for none."""
    group_resource: str = ""
    """The group's logical id in it."""

    @property
    def is_engine(self) -> bool:
        return self.role != "router"

    @property
    def unit(self) -> str:
        """What systemd calls the service that this node is for."""
        return f"kv-roundtrip-{'engine' if self.is_engine else 'router'}"

    @classmethod
    def read(cls, path: Path | None = None) -> NodeConfig:
        """Raises `NodeError`."""
        path = config_path() if path is None else path
        try:
            return cls.parse(json.loads(path.read_text()))
        except OSError as error:
            raise NodeError(
                f"{path} can't be read: {error.strerror}. hint: user data writes it; see /var/log/cloud-init-output.log"
            ) from None
        except ValueError as error:
            raise NodeError(f"{path}: {error}") from None

    @classmethod
    def salvage(cls, path: Path | None = None) -> NodeConfig:
        """What a wrong file still says, enough to give its node up; the rest is empty. Raises `NodeError` when it says nothing."""
        path = config_path() if path is None else path
        try:
            given = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise NodeError(f"{path} can't be read: {error}") from None
        if not isinstance(given, Mapping):
            raise NodeError(f"{path} holds no JSON object")
        kinds = {field.name: int if field.type == "int" else str for field in fields(cls)}
        right = {name: given[name] for name, kind in kinds.items() if isinstance(given.get(name), kind)}
        return cls(**{name: kind() for name, kind in kinds.items()} | right)

    @classmethod
    def parse(cls, given: Any) -> NodeConfig:
        """Raises `NodeError` that names every field which is missing, unknown or of the wrong type."""
        if not isinstance(given, Mapping):
            raise NodeError("not a JSON object. hint: deploy the stacks again and replace the node")
        known = {field.name: int if field.type == "int" else str for field in fields(cls)}
        optional = {field.name for field in fields(cls) if field.default is not MISSING}
        faults = [f"{name} is missing" for name in known if name not in given and name not in optional]
        faults += [f"{name} is not known" for name in given if name not in known]
        for name, kind in known.items():
            if name in given and (not isinstance(given[name], kind) or isinstance(given[name], bool)):
                faults.append(f"{name} is {given[name]!r}, expected {kind.__name__}")
        for name, choices in (("role", ROLES), ("accelerator", ACCELERATORS)):
            if isinstance(given.get(name), str) and given[name] not in choices:
                faults.append(f"{name} is {given[name]!r}, expected {' or '.join(choices)}")
        if faults:
            raise NodeError("; ".join(faults) + ". hint: image and template are of two versions; deploy both")
        return cls(**given)


def config_path() -> Path:
    return _place("KVR_NODE_CONFIG", _CONFIG)


def run_folder() -> Path:
    """Files that live as long as the node is up: tunables.json, engines.json, draining."""
    return _place("KVR_RUN", _RUN)


def state_folder() -> Path:
    """Weights and what else is worth keeping over a restart."""
    return _place("KVR_STATE", _STATE)


def tunables_file() -> Path:
    """Written by the agent, read by engine and router."""
    return run_folder() / "tunables.json"


def draining_mark() -> Path:
    """There while this node is on its way out."""
    return run_folder() / "draining"


def weights_folder() -> Path:
    return state_folder() / "weights"


def _place(variable: str, usual: Path) -> Path:
    return Path(os.environ.get(variable, usual))
