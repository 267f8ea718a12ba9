"""Salted digest chain over whole KV blocks: equal digests mean equal tokens from the first one on.

Digest i covers every token up to the end of block i and everything else that changes what those tokens' KV holds, so
comparing two chains gives the longest common prefix in whole blocks. vLLM's own block hashes cannot serve: they are
seeded per process and absent when prefix caching is off.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def seed(block_size: int, cache_salt: str | None, adapter: str | None) -> bytes:
    """Start of a chain. `adapter` is the LoRA name; two tenants' salts never give equal digests."""
    parts = (b"kvr1", str(block_size).encode(), (cache_salt or "").encode(), (adapter or "").encode())
    return _digest(*(len(part).to_bytes(4, "little") + part for part in parts))


def chain(
    token_ids: Sequence[int], block_size: int, start: bytes, extras: Mapping[int, bytes] | None = None
) -> tuple[bytes, bytes]:
    """(16 bytes per whole block, 16 bytes over the whole sequence, the partial last block included).

    `extras` maps a block index to what its tokens do not say, such as the hash of an image whose placeholder starts there.
    """
    extras = extras or {}
    view = memoryview(array("I", token_ids).tobytes())
    step = 4 * block_size
    whole = len(token_ids) // block_size
    digests = bytearray()
    previous = start
    for block in range(whole):
        previous = _digest(previous, view[block * step : (block + 1) * step], extras.get(block, b""))
        digests += previous
    tail = _digest(previous, view[whole * step :], extras.get(whole, b""))
    return bytes(digests), tail


def common_blocks(ours: bytes, theirs: bytes) -> int:
    """Number of leading blocks on which two chains agree."""
    limit = min(len(ours), len(theirs)) // DIGEST_BYTES
    # Chained: a difference in block i shows in every later block, so the border can be bisected.
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * DIGEST_BYTES
        if ours[end - DIGEST_BYTES : end] == theirs[end - DIGEST_BYTES : end]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(*parts: bytes | memoryview) -> bytes:
    state = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(part)
    return state.digest()
