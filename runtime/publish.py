"""A node's metrics in CloudWatch: from pages of its engine or router to a handful of figures a minute.

Counters become what was added since the last look, so that figures of many nodes can be summed, and a restart of what
counts is no drop.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime import transfers
from runtime.exposition import buckets, total
from runtime.node import NodeConfig

NAMESPACE = "KVRoundtrip"

_BATCH = 1_000
"""Figures that one PutMetricData takes."""


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str = "Count"


class Growth:
    """Owner of the counters' last values."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def of(self, name: str, value: float) -> float:
        """What was added since the last call; 0 the first time, all of it after a restart of what counts."""
        last = self._last.get(name, value)
        self._last[name] = value
        return value - last if value >= last else value


def engine_figures(page: str | None, growth: Growth) -> list[Figure]:
    """`page` None: the engine does not answer."""
    if page is None:
        return [Figure("EngineUp", 0)]
    expired = growth.of("expired", total(page, "vllm:nixl_num_kv_expired_reqs_total"))
    return [Figure("EngineUp", 1), Figure("ExpiredLeases", expired)]


class Transfers:
    """Looks at what this node's engine read from its peers since the last look. Owner of the EFA counters' last values."""

    def __init__(self, node: NodeConfig, devices: Path) -> None:
        self._rails = transfers.expected_rails(node)
        self._devices = devices
        self._last = transfers.read_counters(devices)

    def fallback(self, page: str, growth: Growth, floor_mb_s: float) -> str | None:
        """Why they did not go over EFA; None when they did, when there were none, or when the node has no EFA."""
        moved = int(growth.of("bytes", total(page, "vllm:nixl_bytes_transferred_sum")))
        seconds = growth.of("seconds", total(page, "vllm:nixl_xfer_time_seconds_sum"))
        before, self._last = self._last, transfers.read_counters(self._devices)
        if not self._rails:
            return None
        return transfers.judge_rails(before, self._last, moved, self._rails) or transfers.judge(
            moved, seconds, floor_mb_s
        )


def router_figures(page: str | None, growth: Growth, target_s: float) -> list[Figure]:
    """A target between two bounds of the histogram counts as the lower one: what is called good, is."""
    if page is None:
        return []
    # Each bound's growth is kept, so that a new target finds its own.
    grown = {
        bound: growth.of(f"ttft {bound}", count) for bound, count in sorted(buckets(page, "kvr_ttft_seconds").items())
    }
    good = [count for bound, count in grown.items() if bound <= target_s]
    everything = list(grown.values())[-1] if grown else 0.0
    return [Figure("FirstTokensGood", good[-1] if good else 0.0), Figure("FirstTokensAll", everything)]


def efa_figures(expected: int, devices: Path) -> list[Figure]:
    up = sum(1 for device in devices.glob("*") if _is_up(device))
    return [Figure("EfaInterfacesUp", up), Figure("EfaInterfacesMissing", max(0, expected - up))]


def _is_up(device: Path) -> bool:
    """A device that does not say its port's state counts as up: it is there."""
    states = []
    for file in device.glob("ports/*/state"):
        try:
            states.append("ACTIVE" in file.read_text())
        except OSError:  # it went away between the two looks
            states.append(False)
    return all(states)


def publish(cloudwatch: Any, node: NodeConfig, figures: Sequence[Figure], at: datetime.datetime) -> None:
    """Raises what boto3 raises."""
    dimensions = [{"Name": "Deployment", "Value": node.deployment}, {"Name": "Role", "Value": node.role}]
    data: list[Mapping[str, Any]] = [
        {"MetricName": f.name, "Value": f.value, "Unit": f.unit, "Timestamp": at, "Dimensions": dimensions}
        for f in figures
    ]
    for start in range(0, len(data), _BATCH):
        cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=data[start : start + _BATCH])
