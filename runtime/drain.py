"""When a node has to leave, and how: no new turns, wait for the open ones, stop the service, tell Auto Scaling.

What to do is decided by pure functions; `Drain` carries it out, a step a tick, and may be ticked again after any fault.
"""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from runtime.parameters import NO_TIME
from runtime.source import replace

logger = logging.getLogger(__name__)

BLOCK_MARGIN = timedelta(minutes=45)
"""EC2 begins to terminate a Capacity Block's instances 30 minutes before its end."""
SPOT_MARGIN = timedelta(seconds=10)
"""For stopping the engine, before EC2 takes the machine."""
SETTLE = timedelta(seconds=30)
"""Routers read the tag some seconds later, and decode still fetches what prefill has finished."""
_STOP_S = 150.0
"""Above the unit's own time-out for stopping the engine."""


class DrainError(RuntimeError):
    """The service could not be stopped. The text says why."""


class Why(StrEnum):
    SPOT = "EC2 takes this spot instance back"
    TERMINATION = "Auto Scaling terminates this instance"
    BLOCK_END = "the Capacity Block ends"


@dataclass(frozen=True, slots=True)
class Departure:
    why: Why
    by: datetime | None
    """When the machine is gone; None: when we say so."""


def departure(spot: str | None, target: str | None, block_end: str, now: datetime) -> Departure | None:
    """From the instance's metadata and the tunable `capacity_block_end`; the soonest reason wins, None: stay.

    An end that is past is a mistake of whoever wrote it: this node would be gone.
    """
    if spot is not None:
        return Departure(Why.SPOT, _spot_time(spot, now))
    if target == "Terminated":
        return Departure(Why.TERMINATION, None)
    if block_end != NO_TIME:
        end = datetime.strptime(block_end, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC)
        if end - BLOCK_MARGIN <= now < end:
            return Departure(Why.BLOCK_END, end)
    return None


def _spot_time(notice: str, now: datetime) -> datetime:
    """A notice in a form of its own is one all the same: two minutes are what EC2 gives."""
    try:
        return datetime.strptime(json.loads(notice)["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except (ValueError, KeyError, TypeError):
        return now + timedelta(minutes=2)


def deadline(leaving: Departure, since: datetime, patience_s: float) -> datetime:
    """Until when open requests may go on."""
    limit = since + timedelta(seconds=patience_s)
    if leaving.why is Why.SPOT and leaving.by is not None:
        limit = min(limit, leaving.by - SPOT_MARGIN)
    return limit


class Step(StrEnum):
    STAY = "stay"
    WAIT = "wait"
    STOP = "stop"


def next_step(
    leaving: Departure | None, since: datetime, patience_s: float, open_requests: int | None, now: datetime
) -> Step:
    """`open_requests` None: the service does not answer, and may be busy all the same."""
    if leaving is None:
        return Step.STAY
    settled = now >= since + SETTLE
    if (open_requests == 0 and settled) or now >= deadline(leaving, since, patience_s):
        return Step.STOP
    return Step.WAIT


class Fleet(Protocol):
    """What a drain says to AWS. Each may raise; it is said again at the next tick."""

    def tag_state(self, state: str) -> None: ...

    def hold_termination(self) -> None:
        """More time for the termination hook."""

    def let_terminate(self) -> None: ...


class Drain:
    """Owner of this node's way out. RUN/draining outlives the agent: the clock of a drain does not start again."""

    def __init__(
        self, fleet: Fleet, marker: Path, stop: Sequence[str], open_requests: Callable[[], int | None]
    ) -> None:
        self._fleet = fleet
        self._marker = marker
        self._stop = stop
        self._open_requests = open_requests
        self._since, self._tagged = _started(marker), False
        self._stopped = False
        self._released = False

    @property
    def draining(self) -> bool:
        return self._since is not None

    def tick(self, leaving: Departure | None, patience_s: float, now: datetime) -> None:
        """One step. Raises what a step raises; the next tick goes on from there."""
        if leaving is None:
            if self._since is not None and not self._stopped:
                self._stay()
            return
        if self._since is None:
            logger.warning("draining: %s; open requests have %.0f s", leaving.why.value, patience_s)
            replace(self._marker, json.dumps({"why": leaving.why.value, "since": now.isoformat()}) + "\n")
            self._since = now
        try:
            if not self._tagged:
                self._fleet.tag_state("draining")
                self._tagged = True
        finally:
            # A tag that can't be set must not keep the machine, nor cut its requests short.
            self._go_on(leaving, self._since, patience_s, now)

    def _go_on(self, leaving: Departure, since: datetime, patience_s: float, now: datetime) -> None:
        if not self._stopped:
            open_requests = self._open_requests()
            if next_step(leaving, since, patience_s, open_requests, now) is Step.WAIT:
                if leaving.why is Why.TERMINATION:
                    self._fleet.hold_termination()
                return
            logger.warning(
                "stopping the service with %s open requests", "unknown" if open_requests is None else open_requests
            )
            _run(self._stop)
            self._stopped = True
        if leaving.why is Why.TERMINATION and not self._released:
            self._fleet.let_terminate()
            self._released = True

    def _stay(self) -> None:
        logger.warning("no longer draining: the reason is gone")
        self._fleet.tag_state("serving")
        self._marker.unlink(missing_ok=True)
        self._since, self._tagged = None, False


def _started(marker: Path) -> datetime | None:
    try:
        since = datetime.fromisoformat(json.loads(marker.read_text())["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return since if since.tzinfo is not None else None


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, check=False, timeout=_STOP_S, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DrainError(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        raise DrainError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
