"""A handle: decode's `kv_transfer_params`, of which the router reads a few fields and keeps the rest as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "kv_transfer_params"
KEY_BYTES = b'"kv_transfer_params"'

INTERNAL = (KEY, "ec_transfer_params")
"""Fields that make an engine open connections to addresses in them: never a client's to set."""

_REQUIRED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")

# What a prefill request carries when it has no handle: vLLM's own names, with nothing to read from.
_COLD: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class Handle:
    engine_id: str
    params: Mapping[str, Any]
    node: str


def parse(params: object, node: str) -> Handle | None:
    """None when a field is missing that prefill needs to read the blocks. Unknown fields are kept."""
    if not isinstance(params, dict) or any(not params.get(name) for name in _REQUIRED):
        return None
    return Handle(str(params["remote_engine_id"]), params, node)


def for_prefill(handle: Handle | None) -> dict[str, Any]:
    """`kv_transfer_params` of the prefill request: the handle's, with the roles set for prefill."""
    if handle is None:
        return dict(_COLD)
    return {**handle.params, "do_remote_decode": True, "do_remote_prefill": False}


def secrets(params: Mapping[str, Any]) -> tuple[bytes, ...]:
    """What of `params` must not show in text for a client."""
    values = (params.get(name) for name in ("remote_host", "remote_engine_id", "remote_request_id"))
    return (KEY.encode(), *(str(value).encode() for value in values if value))
