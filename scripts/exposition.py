"""Reads a page in Prometheus' text format."""

from __future__ import annotations


def total(page: str, name: str, **labels: str) -> float:
    """Sum of all samples called `name` with these labels; 0 when there is none."""
    found = 0.0
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.split("{")[0] == name and all(f'{key}="{label}"' in sample for key, label in labels.items()):
            found += float(value)
    return found
