"""Reads a page in Prometheus' text format."""

from __future__ import annotations

import re

_BOUND = re.compile(r'[{,]le="([^"]+)"')


def total(page: str, name: str, **labels: str) -> float:
    """Sum of all samples called `name` with these labels; 0 when there is none."""
    found = 0.0
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.split("{")[0] == name and all(f'{key}="{label}"' in sample for key, label in labels.items()):
            found += float(value)
    return found


def buckets(page: str, name: str) -> dict[float, float]:
    """Upper bound -> observations up to it, of the histogram `name`, over all its other labels."""
    found: dict[float, float] = {}
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        bound = _BOUND.search(sample) if sample.split("{")[0] == f"{name}_bucket" else None
        if bound is not None:
            upper = float(bound[1])
            found[upper] = found.get(upper, 0.0) + float(value)
    return found
