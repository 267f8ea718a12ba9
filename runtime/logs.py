"""A node's log files: which there are, how long they grow, and `python -m runtime.logs`, which writes the CloudWatch agent's
configuration for them to standard output."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from runtime.node import NodeConfig, NodeError

_FOLDER = "/var/log/kv-roundtrip"
_LONGEST = 256 * 1024 * 1024


def configuration(node: NodeConfig) -> dict[str, object]:
    """One group per role, which the stacks make; a stream per file and instance."""
    # boot.log: start.sh's, with what the journal says of a node that is given up and gone soon.
    names = ("engine" if node.is_engine else "router", "agent", "boot")
    files = [
        {
            "file_path": f"{_FOLDER}/{name}.log",
            "log_group_name": f"/{node.deployment}/{node.role}",
            "log_stream_name": f"{{instance_id}}/{name}",
        }
        for name in names
    ]
    return {"logs": {"logs_collected": {"files": {"collect_list": files}}}}


def trim(folder: Path | None = None, longest: int = _LONGEST) -> None:
    """Keeps each log below `longest` bytes, and the one before it as NAME.1. Raises `OSError`.

    systemd holds the files open, to append: they are copied and emptied in place. A line written meanwhile may be lost.
    """
    for file in sorted((Path(_FOLDER) if folder is None else folder).glob("*.log")):
        if file.is_symlink() or file.stat().st_size <= longest:
            continue
        old = file.with_name(f"{file.name}.1")
        old.unlink(missing_ok=True)
        # Exclusive: the folder is the service's own, which is not root.
        with file.open("rb") as source, old.open("xb") as target:
            shutil.copyfileobj(source, target)
        os.truncate(file, 0)


def main() -> int:
    try:
        print(json.dumps(configuration(NodeConfig.read())))
    except NodeError as error:
        print(f"runtime.logs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
