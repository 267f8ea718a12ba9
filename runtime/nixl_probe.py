"""`python -m runtime.nixl_probe BACKEND`: makes a NIXL agent as the engine will, and says what came of it as one JSON line.

A process of its own, so that a library that crashes or hangs takes nothing else down.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from importlib.metadata import version

# What the wheel's LIBFABRIC plugin takes from the system (`objdump -p libplugin_LIBFABRIC.so`, nixl-cu12 1.5.1); any name of a
# row will do. NIXL itself only says "unsupported backend" when one is missing.
_SYSTEM_LIBRARIES = {
    "LIBFABRIC": (
        ("libfabric.so.1",),
        ("libcuda.so.1",),
        ("libcudart.so.12", "libcudart.so.13"),
        ("libhwloc.so.15",),
    )
}


def missing_libraries(backend: str) -> list[str]:
    """What the loader says about each library of the system that `backend` needs and does not get."""
    faults = []
    for names in _SYSTEM_LIBRARIES.get(backend, ()):
        said = []
        for name in names:
            try:
                ctypes.CDLL(name)
            except OSError as error:
                said.append(str(error))
        if len(said) == len(names):
            faults.append(said[0])
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.nixl_probe")
    parser.add_argument("backend")
    parser.add_argument(
        "--torch", action="store_true", help="import torch first, as vLLM does: it brings CUDA's libraries"
    )
    given = parser.parse_args()
    found: dict[str, object] = {"backend": given.backend, "made": False, "plugins": [], "error": "", "missing": []}
    try:
        if given.torch:
            import torch  # noqa: F401
        from nixl._api import nixl_agent, nixl_agent_config

        found["version"] = version("nixl")
        agent = nixl_agent("preflight", nixl_agent_config(backends=[]))
        found["plugins"] = sorted(agent.get_plugin_list())
        if given.backend in agent.get_plugin_list():
            agent.create_backend(given.backend)
            found["made"] = given.backend in agent.backends
    except Exception as error:  # NIXL's own errors have no base class of theirs
        found["error"] = f"{type(error).__name__}: {error}"
        found["missing"] = missing_libraries(given.backend)
    print(json.dumps(found), flush=True)
    return 0 if found["made"] else 1


if __name__ == "__main__":
    sys.exit(main())
