"""What a handle says of itself, beside vLLM's own fields: the `kvr` entry of `kv_transfer_params`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from connector.digest import DIGEST_BYTES

KEY = "kvr"
FORMAT = 1

# vLLM reads these without a check of its own (nixl/pull_scheduler.py, 0.29 to 0.33).
PEER_FIELDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_PARALLEL_FIELDS = ("tp_size", "dcp_size", "pp_size")


class Refusal(StrEnum):
    """Why a handle was not used; the request is computed instead."""

    MALFORMED = "malformed"
    USED = "used"
    NO_DIGESTS = "no_digests"
    FORMAT = "format"
    BLOCK_SIZE = "block_size"
    UNVERIFIABLE = "unverifiable"
    NOTHING_VERIFIED = "nothing_verified"
    OTHER_PROMPT = "other_prompt"
    LOAD_FAILED = "load_failed"


@dataclass(frozen=True, slots=True)
class Cover:
    """The tokens that the handle's blocks hold KV for.

    digests: 16 bytes per whole block, see `connector.digest.chain`; tail: 16 bytes over all `tokens`.
    """

    block_size: int
    tokens: int
    digests: bytes
    tail: bytes

    @property
    def blocks(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def to_json(self) -> dict[str, Any]:
        return {
            "version": FORMAT,
            "block_size": self.block_size,
            "tokens": self.tokens,
            "digests": base64.b64encode(self.digests).decode(),
            "tail": base64.b64encode(self.tail).decode(),
        }


def parse_cover(entry: object) -> Cover | Refusal:
    """The `kvr` entry of a handle, or why it cannot be used. Never raises: a handle is input from another process."""
    if entry is None:
        return Refusal.NO_DIGESTS
    if not isinstance(entry, Mapping):
        return Refusal.MALFORMED
    if entry.get("version") != FORMAT:
        return Refusal.FORMAT
    block_size, tokens = entry.get("block_size"), entry.get("tokens")
    if type(block_size) is not int or type(tokens) is not int or block_size < 1 or tokens < 0:
        return Refusal.MALFORMED
    digests, tail = _decode(entry.get("digests")), _decode(entry.get("tail"))
    if digests is None or tail is None or len(tail) != DIGEST_BYTES:
        return Refusal.MALFORMED
    # Fewer digests than blocks only covers less; more would claim blocks that are not there.
    if len(digests) % DIGEST_BYTES or len(digests) // DIGEST_BYTES > tokens // block_size:
        return Refusal.MALFORMED
    return Cover(block_size, tokens, digests, tail)


def names_peer(params: Mapping[str, Any]) -> bool:
    """Whether `params` name an engine and request well enough that contacting that engine cannot fault ours."""
    engine, request, host, port = (params.get(name) for name in PEER_FIELDS)
    texts = all(isinstance(text, str) and text for text in (engine, request, host))
    sizes = all(type(params.get(name, 1)) is int and params.get(name, 1) > 0 for name in _PARALLEL_FIELDS)
    expiry = params.get("remote_blocks_expiry_time")
    expires = expiry is None or type(expiry) in (int, float)
    return texts and sizes and expires and type(port) is int and 0 < port < 65_536


def block_groups(params: Mapping[str, Any]) -> list[list[int]] | None:
    """`remote_block_ids` as one list of block ids per KV cache group; None when it is anything else."""
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list | tuple) or not groups:
        return None
    for group in groups:
        if not isinstance(group, list | tuple) or not all(type(block) is int and block >= 0 for block in group):
            return None
    return [list(group) for group in groups]


def _decode(text: object) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
