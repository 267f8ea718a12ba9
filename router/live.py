"""The router's tunables as they are now: flags and environment over the node's file, which is followed while the router runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from runtime.parameters import Apply, ParameterError, Reader, Tunables, TunablesFile, Value, for_reader

logger = logging.getLogger("router")

# A look at a file's time stamp; a change in Parameter Store takes the agent several times as long to bring here.
_INTERVAL = 1.0


class Live:
    """Only owner of the current set. Read a value where it is used: a kept copy would not hear of a change."""

    def __init__(self, given: Mapping[str, Value], path: Path | None = None) -> None:
        """`given` wins over the file at `path`. Reads nothing yet. Raises `ParameterError` for values that conflict."""
        self._current = Tunables.of(given)
        self._file = None if path is None else TunablesFile(path, given)
        self._changed = asyncio.Event()
        self._waiting: Mapping[str, Value] = {}
        self._told = ""

    def integer(self, name: str) -> int:
        return self._current.integer(name)

    def number(self, name: str) -> float:
        return self._current.number(name)

    def flag(self, name: str) -> bool:
        return self._current.flag(name)

    def text(self, name: str) -> str:
        return self._current.text(name)

    def load(self) -> None:
        """The first read of the file, before anything is built: here the parameters that need a restart count too."""
        if self._file is None:
            return
        self._current = self._file.poll() or self._current
        self._tell(self._file.fault)

    def poll(self) -> tuple[str, ...]:
        """Takes over the live values of a file that changed; their names. What is wrong with it is logged, once."""
        if self._file is None:
            return ()
        fresh = self._file.poll()
        self._tell(self._file.fault)
        if fresh is None:
            return ()
        changed = _differences(self._current, fresh, Apply.LIVE)
        self._await_restart(_differences(self._current, fresh, Apply.RESTART))
        try:
            # Again as a whole: parameters that wait for a restart may conflict with the new ones.
            after = Tunables.of({**self._current.values, **changed})
        except ParameterError as error:
            self._tell(str(error))
            return ()
        if changed:
            self._take(after, changed)
        return tuple(changed)

    async def next_change(self) -> tuple[str, ...]:
        """Polls until live values change; their names."""
        while True:
            await asyncio.sleep(_INTERVAL)
            if changed := self.poll():
                return changed

    async def pause(self, name: str) -> None:
        """Sleeps for as many seconds as `name` says; a change of it counts at once."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (left := began + self.number(name) - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def _take(self, after: Tunables, changed: Mapping[str, Value]) -> None:
        before, self._current = self._current, after
        waiters, self._changed = self._changed, asyncio.Event()
        waiters.set()
        values = {name: {"old": before.values[name], "new": value} for name, value in changed.items()}
        # A warning, so that a quiet router says it as well.
        logger.warning("tunables changed", extra={"fields": {"tunables": values}})

    def _await_restart(self, waiting: Mapping[str, Value]) -> None:
        if waiting and waiting != self._waiting:
            values = {name: {"running": self._current.values[name], "set": value} for name, value in waiting.items()}
            logger.warning("tunables wait for a restart", extra={"fields": {"tunables": values}})
        self._waiting = waiting

    def _tell(self, fault: str) -> None:
        if fault and fault != self._told:
            logger.warning("tunables file not taken, values stay", extra={"fields": {"reason": fault}})
        self._told = fault


def _differences(now: Tunables, fresh: Tunables, apply: Apply) -> dict[str, Value]:
    """The router's parameters of this kind that `fresh` has another value for."""
    names = [p.name for p in for_reader(Reader.ROUTER) if p.apply is apply]
    return {name: fresh.values[name] for name in names if fresh.values[name] != now.values[name]}
