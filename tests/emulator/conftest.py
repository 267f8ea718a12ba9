from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.process import Running, running


@pytest.fixture(scope="session")
def aws() -> Iterator[Running]:
    with running() as emulator:
        yield emulator
