"""One running system for all engine tests: real vLLM on this CPU, NIXL over loopback, the tiny model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.fleet import Fleet, FleetOptions
from runtime.model import tiny
from tests.engine.turns import Pair

# vLLM declines a read in the last 5 s of a hold, so a hold has to be longer than that to be of use.
HOLD_SECONDS = 20


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    values = {
        "kv_recompute_threshold": 0,  # short prompts would hide faults behind it
        "decoder_kv_blocks_ttl": HOLD_SECONDS,
        "handle_ttl": 14.0,
        "health_interval": 0.2,
    }
    options = FleetOptions(model=str(tiny()), max_model_len=2_048, values=values)
    with Fleet(options, lambda line: print(line, flush=True)) as running:
        yield running


@pytest.fixture
def pair(fleet: Fleet) -> Pair:
    return Pair(fleet.prefill[0], fleet.decode[0])
