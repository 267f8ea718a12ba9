"""Live tunables of an engine: the file that the node's agent writes, looked at from scheduler hooks that run anyway.

Reaches the process that schedules. The API server and the workers of a tensor-parallel engine are others; they keep the log
level they started with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from vllm.logger import init_logger

from runtime.parameters import (
    PARAMETERS,
    TUNABLES_FILE_ENV,
    Apply,
    Reader,
    Tunables,
    TunablesFile,
    Value,
    from_environment,
)

logger = init_logger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at the file, at least."""

_VLLM = "vllm"
_OURS = "connector"
_READERS = {"kv_producer": (Reader.PREFILL,), "kv_consumer": (Reader.DECODE,)}
_BOTH = (Reader.PREFILL, Reader.DECODE)


class Scheduler(Protocol):
    """What vLLM's pull scheduler asks at each decision; it copies neither of them."""

    kv_recompute_threshold: int
    decoder_kv_blocks_ttl: int


class LiveValues:
    """Sets the scheduler's attributes and the log level. Without a file named in `environ` it does nothing."""

    def __init__(self, scheduler: Scheduler, kv_role: str | None, environ: Mapping[str, str]) -> None:
        """Raises `ParameterError` for a variable of `environ` outside the schema."""
        self._scheduler = scheduler
        self._readers = _READERS.get(kv_role or "", _BOTH)
        self._file: TunablesFile | None = None
        self._due = 0.0
        self._fault = ""
        self._waiting: dict[str, Value] | None = None
        """The values that a restart will apply, as last logged; None before the first set."""
        mine = [p for p in PARAMETERS if set(p.readers) & set(self._readers)]
        self._fixed = [p.name for p in mine if p.apply is Apply.RESTART]
        path = environ.get(TUNABLES_FILE_ENV)
        if path:
            self._file = TunablesFile(Path(path), from_environment(environ, mine))
            _share_handlers()

    def poll(self, now: float) -> None:
        """`now` is monotonic. Costs a comparison while the interval lasts, then one `stat` of the file."""
        if self._file is None or now < self._due:
            return
        self._due = now + INTERVAL
        fresh = self._file.poll()
        if self._file.fault and self._file.fault != self._fault:
            logger.warning("Tunables stay as they are: %s", self._file.fault)
        self._fault = self._file.fault
        if fresh is None and self._waiting is None and not self._fault:
            # All as the schema has it, which need not be what this engine was started with.
            fresh = self._file.current
        if fresh is not None:
            self._apply(fresh)

    def _apply(self, fresh: Tunables) -> None:
        if Reader.PREFILL in self._readers:
            self._set("kv_recompute_threshold", fresh)
        if Reader.DECODE in self._readers:
            self._set("decoder_kv_blocks_ttl", fresh)
        _set_level(fresh.text("log_level"))
        self._log_waiting(fresh)

    def _set(self, name: str, fresh: Tunables) -> None:
        old, new = getattr(self._scheduler, name), fresh.integer(name)
        if old != new:
            setattr(self._scheduler, name, new)
            logger.info("%s %s -> %s", name, old, new)

    def _log_waiting(self, fresh: Tunables) -> None:
        values = {name: fresh.values[name] for name in self._fixed}
        for name, new in values.items():
            old = new if self._waiting is None else self._waiting[name]
            if old != new:
                logger.info("%s %s -> %s waits for a restart of this engine", name, old, new)
        self._waiting = values


def _share_handlers() -> None:
    """vLLM configures loggers below its own name only; ours would show nothing below a warning."""
    ours = logging.getLogger(_OURS)
    if not ours.handlers:
        ours.handlers = list(logging.getLogger(_VLLM).handlers)
        ours.setLevel(logging.getLogger(_VLLM).level)
        ours.propagate = not ours.handlers


def _set_level(name: str) -> None:
    theirs, level = logging.getLogger(_VLLM), logging.getLevelNamesMapping()[name.upper()]
    if theirs.level == level:
        return
    old = logging.getLevelName(theirs.level).lower()
    theirs.setLevel(level)
    logging.getLogger(_OURS).setLevel(level)
    for handler in theirs.handlers:
        handler.setLevel(level)
    # At the level of the change itself, so that it shows in either direction.
    logger.log(max(level, logging.INFO), "log_level %s -> %s", old, name)
