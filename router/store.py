"""The handles of conversations between two turns: each used at most once, each for a limited time, all in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from router.conversation import Key
from router.handle import Handle

Count = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class _Entry:
    handle: Handle
    stored: float
    ttl: float
    """As it was when this was stored: a longer one since then does not make decode hold these blocks longer."""

    def is_expired(self, ttl: float, now: float) -> bool:
        return self.stored + min(self.ttl, ttl) <= now


class HandleStore:
    """Only owner of handles. `now` is seconds on any steady clock; `count(fate, number)` hears what became of handles.

    `ttl()` is asked at each use, so that a shorter one holds for the handles that are here already.
    """

    def __init__(self, ttl: Callable[[], float], limit: int, count: Count) -> None:
        self._ttl = ttl
        self._limit = limit
        self._count = count
        # In order of storing, which is the order of expiry, but for a while after the lifetime was changed.
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, key: Key, now: float, unusable: Callable[[Handle], str | None] = lambda _: None) -> Handle | None:
        """The handle, which is gone from the store from here on. `unusable` gives the fate of one that can't be read."""
        entry = self._entries.pop(key, None)
        if entry is None:
            self._count("missed", 1)
            return None
        if entry.is_expired(self._ttl(), now):
            self._count("expired", 1)
            return None
        if (fate := unusable(entry.handle)) is not None:
            self._count(fate, 1)
            return None
        self._count("taken", 1)
        return entry.handle

    def put(self, key: Key, handle: Handle, now: float) -> None:
        """Keeps `handle`, counted from `now`, the end of decode's turn. It replaces an older one."""
        if self._entries.pop(key, None) is not None:
            self._count("replaced", 1)
        self._entries[key] = _Entry(handle, now, self._ttl())
        self._count("stored", 1)
        self._shed(now)

    def drop(self, key: Key) -> None:
        """Forgets a conversation's handle, whose turn did not come to a good end."""
        if self._entries.pop(key, None) is not None:
            self._count("replaced", 1)

    def drop_engine(self, engine_id: str) -> None:
        """Forgets every handle of an engine that is gone: its blocks went with it."""
        dead = [key for key, entry in self._entries.items() if entry.handle.engine_id == engine_id]
        for key in dead:
            del self._entries[key]
        if dead:
            self._count("engine_gone", len(dead))

    def _shed(self, now: float) -> None:
        ttl = self._ttl()
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.is_expired(ttl, now):
                self._count("expired", 1)
            elif len(self._entries) > self._limit:
                self._count("evicted", 1)
            else:
                return
            self._entries.popitem(last=False)


class Affinity:
    """Which decode engine a conversation last used: its prefix cache still holds the history. Bounded, least recent first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._nodes: OrderedDict[Key, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, key: Key) -> str | None:
        return self._nodes.get(key)

    def set(self, key: Key, node: str) -> None:
        self._nodes[key] = node
        self._nodes.move_to_end(key)
        if len(self._nodes) > self._limit:
            self._nodes.popitem(last=False)
