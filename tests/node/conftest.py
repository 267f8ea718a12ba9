"""The emulator of a module, and the router tests' stage, for routers that find engines by what the emulator says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws import Aws, emulator
from tests.unit.router.conftest import stage  # noqa: F401


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with emulator() as started:
        yield started
