"""The router tests' stage, for routers that find engines by what the emulator says."""

from tests.unit.router.conftest import stage  # noqa: F401
