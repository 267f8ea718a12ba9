"""What a node is told at its first boot: its own configuration, and to start. Everything else is in its image.

The file it writes is `runtime.node.NodeConfig`; a test parses what the templates hold with that class.
"""

from __future__ import annotations

import json

import aws_cdk as cdk

from stacks.config import Config
from stacks.machines import Accelerator
from stacks.network import ENGINE_PORT, SIDE_CHANNEL_PORT

# EC2 takes 16 KB before base64; CDK, cfn-lint and moto take more.
LONGEST = 14 * 1024

METADATA_URL = "http://169.254.169.254"

_SCRIPT = """#!/bin/bash
# Written by stacks/userdata.py. Runs once, as root; the image holds the rest.
set -euo pipefail
install -d -m 0755 /etc/kv-roundtrip
cat >/etc/kv-roundtrip/node.json <<'NODE'
{node}
NODE
if [ ! -x /opt/kv-roundtrip/runtime/boot/start.sh ]; then
    echo "kv-roundtrip: this image holds no /opt/kv-roundtrip. hint: pin an image of the {name}-images stack" >&2
    exit 1
fi
exec /opt/kv-roundtrip/runtime/boot/start.sh {role}
"""


def prefix(config: Config) -> str:
    """Path of the tunables."""
    return f"/{config.name}"


def group_name(config: Config, role: str) -> str:
    """Given, not generated: user data and IAM name the group before it exists."""
    return f"{config.name}-{role}"


def node(
    config: Config, role: str, *, build: str, valkey: str = "", stack: str, group_resource: str
) -> dict[str, object]:
    machine = config.machine if role != "router" else config.router_machine
    return {
        "deployment": config.name,
        "region": config.region,
        "role": role,
        "build": build,
        "parameters": prefix(config),
        "accelerator": machine.accelerator.value,
        "accelerators": machine.accelerators,
        "tensor_parallel": config.tensor_parallel if machine.accelerator is not Accelerator.NONE else 1,
        "efa_interfaces": machine.efa,
        "model": config.model.name,
        "weights": config.model.weights,
        "served_name": config.served_name,
        "hub_token_parameter": config.model.hub_token_parameter,
        "max_model_len": config.model.max_model_len,
        "group": group_name(config, role),
        "launch_hook": f"{group_name(config, role)}-launch",
        "terminate_hook": f"{group_name(config, role)}-terminate",
        "load_budget_s": config.load_budget_s,
        "engine_port": ENGINE_PORT,
        "side_channel_port": SIDE_CHANNEL_PORT,
        "router_port": config.router.port,
        "valkey": valkey,
        "endpoint_url": "",
        "metadata_url": METADATA_URL,
        "stack": stack,
        "group_resource": group_resource,
    }


def user_data(config: Config, entries: dict[str, object]) -> str:
    """Base64 for a launch template. Raises `ValueError` when EC2 would refuse the length."""
    text = _SCRIPT.format(node=json.dumps(entries, indent=1), name=config.name, role=entries["role"])
    if len(text.encode()) > LONGEST:
        raise ValueError(
            f"user data has {len(text.encode())} bytes, EC2 takes {LONGEST}. hint: shorten names in the config"
        )
    return cdk.Fn.base64(text)
