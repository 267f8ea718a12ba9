"""`python -m runtime.agent fetch|run`: what looks after a node, beside its engine or router.

`fetch` writes the tunables once, for boot, and fails when they can't be had. `run` goes on until SIGTERM: it keeps the
tunables file current, has a node that stays sick replaced, publishes metrics, and leads the node out when it has to go. A
fault of one task is logged and the others go on.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

from runtime import direct, log, logs, service
from runtime.drain import Drain, DrainError, departure
from runtime.exposition import total
from runtime.lifecycle import Instance, probe
from runtime.metadata import Metadata, MetadataError
from runtime.node import NodeConfig, NodeError, draining_mark, tunables_file
from runtime.parameters import ParameterError, Reader, Tunables, TunablesFile, for_reader, from_environment
from runtime.patience import insist
from runtime.publish import Figure, Growth, Transfers, efa_figures, engine_figures, publish, router_figures
from runtime.source import AWS_ERRORS, Source, SourceError, client, explain
from runtime.transfers import INFINIBAND

logger = logging.getLogger(__name__)

_PUBLISH_S = 60.0
_LEAVE_S = 5.0
"""Longest time between two looks at the notices of EC2: a spot instance has two minutes from the notice."""
_PAGE_S = 5.0
_TRIM_S = 60.0
_FETCH_S = 120.0
"""Parameter Store may be throttled, or the network late, when a whole fleet boots. Below the unit's time-out."""
_SICK_TIMES = 5

KNOWN = (*AWS_ERRORS, SourceError, MetadataError, DrainError, OSError)


@dataclass(frozen=True, slots=True)
class Health:
    """Failed looks in a row."""

    failures: int = 0
    since: float = 0.0

    def after(self, healthy: bool, now: float) -> Health:
        if healthy:
            return Health()
        return Health(self.failures + 1, self.since if self.failures else now)

    def is_lost(self, now: float, restart_s: float) -> bool:
        """Sick for longer than the service may take to start again, and seen to be so several times."""
        return self.failures >= _SICK_TIMES and now - self.since > restart_s


@dataclass(slots=True)
class Task:
    name: str
    act: Callable[[], None]
    every: Callable[[], float]
    due: float = 0.0
    fault: str = ""

    def run(self) -> None:
        """Never raises an `Exception`; a fault is logged when it is another one than before."""
        try:
            self.act()
            fault = ""
        except KNOWN as error:
            fault = explain(error)
            if fault != self.fault:
                logger.error("%s: %s", self.name, fault)
        except Exception as error:
            fault = repr(error)
            if fault != self.fault:
                logger.exception("%s: a fault that nobody foresaw; the agent goes on", self.name)
        if self.fault and not fault:
            logger.info("%s: well again", self.name)
        self.fault = fault


class Agent:
    def __init__(self, node: NodeConfig, stop: Sequence[str], devices: Path, publish_s: float = _PUBLISH_S) -> None:
        """`stop` is the command that stops this node's service."""
        self._node = node
        self._devices = devices
        self._metadata = Metadata(node.metadata_url)
        self._instance = Instance(node, self._metadata)
        self._source = _source(node)
        self._file = TunablesFile(tunables_file(), from_environment(os.environ, for_reader(Reader.AGENT)))
        self._file.poll()
        self._cloudwatch = client("cloudwatch", node.region, node.endpoint_url)
        self._drain = Drain(self._instance, draining_mark(), stop, self._open_requests)
        self._health = Health()
        self._growth = Growth()
        self._transfers = Transfers(node, devices)
        self._fallback = ""
        self._faults: tuple[str, ...] = ()
        interval = self._interval
        self.tasks = (
            Task("leave", self._leave, lambda: min(_LEAVE_S, interval())),
            Task("tunables", self._read_tunables, interval),
            Task("health", self._look, interval),
            Task("metrics", self._publish, lambda: publish_s),
            Task("logs", logs.trim, lambda: _TRIM_S),
        )

    def run(self) -> NoReturn:
        while True:
            now = time.monotonic()
            for task in self.tasks:
                if now >= task.due:
                    task.run()
                    task.due = now + task.every()
            time.sleep(max(0.0, min(task.due for task in self.tasks) - time.monotonic()))

    @property
    def _tunables(self) -> Tunables:
        return self._file.current

    def _interval(self) -> float:
        return self._tunables.number("agent_interval")

    def _read_tunables(self) -> None:
        try:
            outcome = self._source.poll()
        finally:
            # Also what an earlier agent or `fetch` wrote, when Parameter Store does not answer now.
            self._file.poll()
        for name, (old, new) in outcome.changed.items():
            logger.info("%s: %s -> %s", name, "nothing" if old is None else old, new)
        if outcome.faults != self._faults:
            for fault in outcome.faults:
                logger.error("%s", fault)
            self._faults = outcome.faults

    def _leave(self) -> None:
        now = datetime.now(UTC)
        block_end = self._tunables.text("capacity_block_end") if self._node.is_engine else "none"
        spot = self._metadata.get("spot/instance-action")
        target = self._metadata.get("autoscaling/target-lifecycle-state")
        leaving = departure(spot, target, block_end, now)
        self._drain.tick(leaving, self._tunables.number("node_drain_timeout"), now)

    def _look(self) -> None:
        if self._drain.draining:
            self._health = Health()
            return
        fault = probe(f"{self._instance.service_url()}/health")
        now = time.monotonic()
        patience = float(self._node.load_budget_s)
        if fault is not None and (state := service.state(self._node.unit)) == service.FAILED:
            # No start under way that is worth to wait for.
            fault, patience = f"{self._node.unit} is {state} and systemd does not start it again: {fault}", 0.0
        if fault is not None and not self._health.failures:
            logger.warning("%s; replaced when that lasts %.0f s", fault, patience)
        self._health = self._health.after(fault is None, now)
        if self._health.is_lost(now, patience):
            logger.error("%s, for %.0f s: telling Auto Scaling to replace this node", fault, now - self._health.since)
            self._instance.set_unhealthy()
            # Said once; again only after as long once more.
            self._health = Health()

    def _publish(self) -> None:
        publish(self._cloudwatch, self._node, self._figures(), datetime.now(UTC))

    def _figures(self) -> list[Figure]:
        url = self._instance.service_url()
        page = _page(url) if probe(f"{url}/health") is None else None
        if not self._node.is_engine:
            return router_figures(page, self._growth, self._tunables.number("ttft_target"))
        figures = [*engine_figures(page, self._growth), *efa_figures(self._node.efa_interfaces, self._devices)]
        if page is None:
            return figures
        fault = self._transfers.fallback(page, self._growth, self._tunables.number("transfer_floor")) or ""
        if fault and not self._fallback:
            logger.error("%s", fault)
        self._fallback = fault
        return [*figures, Figure("TcpFallback", float(bool(fault)))]

    def _open_requests(self) -> int | None:
        page = _page(self._instance.service_url())
        if page is None:
            return None
        if self._node.is_engine:
            return int(total(page, "vllm:num_requests_running") + total(page, "vllm:num_requests_waiting"))
        return int(total(page, "kvr_open_requests"))


def _page(url: str) -> str | None:
    """The metrics page of the service at `url`; None when it does not answer."""
    try:
        with direct.opener.open(f"{url}/metrics", timeout=_PAGE_S) as answer:
            return bytes(answer.read()).decode()
    except (OSError, http.client.HTTPException):
        return None


def _source(node: NodeConfig) -> Source:
    return Source(client("ssm", node.region, node.endpoint_url), node.parameters, tunables_file())


def fetch(node: NodeConfig) -> None:
    """Raises `SourceError`: a node does not start on values that nobody chose."""
    outcome = insist(_source(node).poll, _FETCH_S)
    for fault in outcome.faults:
        logger.error("%s", fault)
    logger.info("%s written, %d values changed", tunables_file(), len(outcome.changed))


def _leave_at_once(_: int, __: FrameType | None) -> NoReturn:
    # Out of any wait: every write is atomic, and what was begun is begun again by the next agent.
    sys.exit(0)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.agent", description="Looks after a node.")
    parser.add_argument("what", choices=("fetch", "run"))
    parser.add_argument("--stop-command", default="", help="stops this node's service (default: systemctl stop)")
    parser.add_argument(
        "--infiniband", type=Path, default=INFINIBAND, help="where EFA devices show (default: %(default)s)"
    )
    given = parser.parse_args(argv)
    log.configure()
    signal.signal(signal.SIGTERM, _leave_at_once)
    try:
        node = NodeConfig.read()
        if given.what == "fetch":
            fetch(node)
            return 0
        stop = shlex.split(given.stop_command) or ["systemctl", "stop", node.unit]
        Agent(node, stop, given.infiniband).run()
    except KeyboardInterrupt:
        return 0
    except (NodeError, ParameterError, *KNOWN) as error:
        logger.error("%s", explain(error))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
