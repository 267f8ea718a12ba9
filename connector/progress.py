"""vLLM general plugin: lets NIXL's progress thread sleep between polls, for engines that share few cores over TCP.

NIXL's Python API passes a delay of 0, which its UCX backend turns into `poll(..., timeout=0)`: one core per engine at
100 % for ever (nixl src/api/python/_api.py and src/plugins/ucx/ucx_backend.cpp; measured here: 3.0 s CPU in 3 s idle, 0.1 s
with a delay of 1 ms). Transfers wake the poll at once, so the delay is no latency. On EFA nodes cores are plenty and
LIBFABRIC has its own thread: leave it at 0 there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from runtime.parameters import BY_NAME, from_environment

_MARK = "kvr_delay"
_PARAMETER = BY_NAME["nixl_progress_delay"]


def register() -> None:
    """Entry point of `vllm.general_plugins`; vLLM may call it several times in one process."""
    delay = int(from_environment(os.environ, (_PARAMETER,)).get(_PARAMETER.name, _PARAMETER.default))
    if delay == 0:
        return
    from vllm.distributed.nixl_utils import NixlWrapper

    if NixlWrapper is None:
        return
    bindings = sys.modules[NixlWrapper.__module__].nixlBind
    if not hasattr(bindings.nixlAgentConfig, _MARK):
        bindings.nixlAgentConfig = _with_delay(bindings.nixlAgentConfig, delay)


def _with_delay(config: Any, delay: int) -> Any:
    """A subclass of NIXL's agent configuration that keeps `delay` (microseconds) whatever NIXL's Python API assigns."""

    def assign(self: Any, _given: int) -> None:
        config.pthrDelay.fset(self, delay)

    return type("PatientAgentConfig", (config,), {_MARK: True, "pthrDelay": property(config.pthrDelay.fget, assign)})
