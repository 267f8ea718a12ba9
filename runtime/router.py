"""`python -m runtime.router`: becomes this node's router, from node.json.

Exit code 2: the node's own configuration is wrong; 1: its address is not known yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from runtime import address
from runtime.address import AddressError
from runtime.node import NodeConfig, NodeError, tunables_file
from runtime.parameters import TUNABLES_FILE_ENV

# Above the longest idle time that a load balancer can have, 4,000 s: else it writes to connections that we are closing.
KEEP_ALIVE_S = 4_060


def argv(node: NodeConfig, host: str) -> list[str]:
    """Pure. `host` is the node's private address. Raises `NodeError` for a node that is no router."""
    if node.is_engine:
        raise NodeError(f"this node's role is {node.role}. hint: its unit is kv-roundtrip-engine")
    command = [sys.executable, "-m", "router", "--host", host, "--port", str(node.router_port)]
    command += ["--engines-ec2", node.deployment, "--region", node.region]
    return [*command, "--keep-alive", str(KEEP_ALIVE_S)]


def environment(node: NodeConfig, tunables: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    given = {**inherited, TUNABLES_FILE_ENV: str(tunables)}
    if node.endpoint_url:
        given["AWS_ENDPOINT_URL"] = node.endpoint_url
    return given


def main() -> int:
    try:
        node = NodeConfig.read()
        command = argv(node, address.find(node.metadata_url).address)
        os.execve(command[0], command, environment(node, tunables_file(), os.environ))
    except AddressError as error:
        print(f"runtime.router: {error}", file=sys.stderr)
        return 1
    except NodeError as error:
        print(f"runtime.router: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
