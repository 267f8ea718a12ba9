"""The vLLM versions whose scheduler-side connector interface this package was read against."""

from __future__ import annotations

import re

KNOWN = ("0.29", "0.30", "0.31", "0.32", "0.33")

# The first version whose streamed answers carry `kv_transfer_params` (vLLM's chat_completion/serving.py, read in the 0.33.0 wheel).
FIRST_WITH_STREAMED_HANDLE = "0.33"


class UnsupportedVersion(RuntimeError):
    pass


def release(version: str) -> str:
    """`0.33.0+cu130` -> `0.33`. Raises `UnsupportedVersion` when it does not start like a release number."""
    found = re.match(r"(\d+\.\d+)(?:\.|$|[^\d])", version)
    if found is None:
        raise UnsupportedVersion(_refusal(version))
    return found.group(1)


def require_known(version: str) -> str:
    """Returns the release of `version`. Raises `UnsupportedVersion` naming it and the known ones."""
    found = release(version)
    if found not in KNOWN:
        raise UnsupportedVersion(_refusal(version))
    return found


def streams_handle(version: str) -> bool:
    return KNOWN.index(require_known(version)) >= KNOWN.index(FIRST_WITH_STREAMED_HANDLE)


def _refusal(version: str) -> str:
    return (
        f"KV Roundtrip does not know vLLM {version}; known are {', '.join(KNOWN)}. "
        "hint: install one of these, or remove kv_connector_module_path to run without the round trip"
    )
