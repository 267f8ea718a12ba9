"""`python -m runtime.logs`: the CloudWatch agent's configuration for this node's logs, on standard output."""

from __future__ import annotations

import json
import sys

from runtime.node import NodeConfig, NodeError

_FOLDER = "/var/log/kv-roundtrip"


def configuration(node: NodeConfig) -> dict[str, object]:
    """One group per role, which the stacks make; a stream per file and instance."""
    names = ("engine" if node.is_engine else "router", "agent")
    files = [
        {
            "file_path": f"{_FOLDER}/{name}.log",
            "log_group_name": f"/{node.deployment}/{node.role}",
            "log_stream_name": f"{{instance_id}}/{name}",
        }
        for name in names
    ]
    return {"logs": {"logs_collected": {"files": {"collect_list": files}}}}


def main() -> int:
    try:
        print(json.dumps(configuration(NodeConfig.read())))
    except NodeError as error:
        print(f"runtime.logs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
