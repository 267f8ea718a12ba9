"""The handles this engine has seen. A second look at one could read blocks that by then hold another conversation."""

from __future__ import annotations

from collections import OrderedDict

# Far more than an engine starts in the longest decoder_kv_blocks_ttl; about 20 MB when full.
_REMEMBERED = 100_000


class UsedHandles:
    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._remembered = remembered

    def add(self, handle: tuple[str, str]) -> bool:
        """`handle` is (engine id, request id). False when it was added before."""
        if handle in self._seen:
            return False
        self._seen[handle] = None
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return True
