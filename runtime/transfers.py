"""Did KV blocks go over EFA, and fast enough? Pure but for `read_counters`; the node's agent asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runtime.node import NodeConfig

INFINIBAND = Path("/sys/class/infiniband")

_READ = "rdma_read_bytes"
# Reads by hardware count in the first; on types that emulate them, and on some drivers, only the packets' bytes grow.
_CARRIED = (_READ, "rx_bytes", "tx_bytes")

_SURE_PER_RAIL = 1024 * 1024
"""Bytes a rail. NIXL cuts what is above 128 KiB into stripes and gives the rest to one rail after the other: with less than some
stripes for each, a rail that carried nothing says nothing."""

Counters = Mapping[str, Mapping[str, int]]
"""By rail, then by name of the counter."""


def judge(moved: int, seconds: float, floor_mb_s: float) -> str | None:
    """What to warn of when `moved` bytes in `seconds` were below the tunable `transfer_floor`; None when there is nothing."""
    if floor_mb_s <= 0 or moved <= 0 or seconds <= 0:
        return None
    rate = moved / 1e6 / seconds
    if rate >= floor_mb_s:
        return None
    return (
        f"KV transfers ran at {rate:,.0f} MB/s ({moved / 1e6:,.1f} MB in {seconds * 1000:,.0f} ms), below transfer_floor "
        f"{floor_mb_s:,.0f} MB/s. hint: this is how a fall-back from EFA to TCP looks; run `python -m runtime.preflight` on both nodes"
    )


def judge_rails(before: Counters, after: Counters, moved: int, expected: int) -> str | None:
    """What to warn of when `moved` bytes were transferred between two samples of a node with `expected` rails in use.

    None when every one of them carried something, when too little moved to tell, or when the node has no EFA.
    """
    if moved <= 0 or expected <= 0:
        return None
    carried = sum(1 for rail in after if _grew(before, after, rail, _CARRIED))
    if not carried:
        return (
            f"{moved / 1e6:,.1f} MB of KV moved and no EFA counter grew: they went over TCP. "
            "hint: `backends` must be LIBFABRIC and FI_PROVIDER efa; run `python -m runtime.preflight` on both nodes"
        )
    if carried < expected and moved >= expected * _SURE_PER_RAIL:
        return f"KV went over {carried} of {expected} EFA rails. hint: run `python -m runtime.preflight`; `dmesg | grep efa`"
    return None


def rails_read(before: Counters, after: Counters) -> int:
    """Rails whose hardware read from a peer between the samples: so many are proved to work."""
    return sum(1 for rail in after if _grew(before, after, rail, (_READ,)))


def expected_rails(node: NodeConfig) -> int:
    """Rails that this node's engine can use: NIXL gives each accelerator those nearest to it."""
    if node.accelerator != "cuda" or not node.accelerators:
        return node.efa_interfaces
    used = min(node.tensor_parallel, node.accelerators)
    return max(1, node.efa_interfaces * used // node.accelerators) if node.efa_interfaces else 0


def read_counters(folder: Path = INFINIBAND) -> dict[str, dict[str, int]]:
    """The hardware counters of each EFA device; a device or counter that can't be read is left out."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("*/ports/1/hw_counters/*")):
        try:
            number = int(path.read_text())
        except (OSError, ValueError):
            continue
        found.setdefault(path.parents[3].name, {})[path.name] = number
    return found


def _grew(before: Counters, after: Counters, rail: str, names: tuple[str, ...]) -> bool:
    """A counter below its old value started anew with its driver, and counts from zero."""
    for name in names:
        new, old = after[rail].get(name, 0), before.get(rail, {}).get(name, 0)
        if new > (old if new >= old else 0):
            return True
    return False
