"""Takes the handle out of decode's answer and keeps it for the conversation's next turn."""

from __future__ import annotations

import time
from typing import Any

from router import handle, sse
from router.conversation import Key
from router.handle import Handle
from router.metrics import Metrics
from router.nodes import Node, Nodes
from router.store import HandleStore

# Ends that leave no KV to trust behind.
_BAD_ENDS = frozenset({"error", "abort"})

# What such an end has in its bytes; parsed only on a hit, since a text may be one of these words too.
_BAD_SIGNS = (b'"error"', b'"abort"')


class Keeper:
    """Of one answer. Stores the handle when, and only when, the answer came to a good end."""

    def __init__(self, store: HandleStore, nodes: Nodes, metrics: Metrics, key: Key | None, node: Node) -> None:
        """`key` is None when nothing is to be kept; the answer is cleaned all the same."""
        self._store = store
        self._nodes = nodes
        self._metrics = metrics
        self._key = key
        self._node = node
        self._handle: Handle | None = None
        self._is_bad = False
        self._is_finished = False

    def passed(self, event: bytes, is_cut: bool = False) -> bytes:
        """What of `event` the client may see. `is_cut`: the stream ended inside it."""
        visible, fields = sse.without_field(event, handle.KEY)
        if fields is None and any(sign in event for sign in _BAD_SIGNS):
            fields = sse.fields(event)
        if fields is not None:
            self.saw(fields)
        elif is_cut and handle.KEY_BYTES in visible:
            return b""
        if b"[DONE]" in visible and sse.data(visible) == b"[DONE]":
            # Stored before the client can know that the turn is over and send the next one.
            self.finished()
        return visible

    def saw(self, fields: dict[str, Any]) -> None:
        """`fields` are those of an event, or of a whole answer."""
        params = fields.get(handle.KEY)
        ends = {choice.get("finish_reason") for choice in fields.get("choices") or ()}
        if fields.get("error") or not ends.isdisjoint(_BAD_ENDS):
            self._is_bad = True
        if params is None:
            return
        self._handle = handle.parse(params, self._node.name)
        if self._handle is None:
            self._metrics.count_handle("invalid", 1)
            self._is_bad = True

    def finished(self) -> None:
        """The answer is complete. Calls after the first do nothing."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._handle is not None:
            self._nodes.saw_engine(self._node, self._handle.engine_id)
        if self._key is None:
            return
        if self._handle is not None and not self._is_bad:
            self._store.put(self._key, self._handle, time.monotonic())
            return
        if not self._is_bad:
            self._metrics.count_handle("absent", 1)
        self._store.drop(self._key)
