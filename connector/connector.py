"""The connector that vLLM loads: `kv_connector` "RoundtripConnector", `kv_connector_module_path` "connector.connector"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

from connector.scheduler import RoundtripScheduler
from connector.version import require_known

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

require_known(vllm.__version__)


class UnsafeConfiguration(ValueError):
    """A transfer configuration that would answer with an error where a recompute is right."""


class RoundtripConnector(NixlPullConnector):  # type: ignore[misc]
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        policy = self.kv_transfer_config.kv_load_failure_policy
        if policy != "recompute":
            raise UnsafeConfiguration(
                f"kv_load_failure_policy is {policy!r}: a handle that expired would answer HTTP 500. hint: set 'recompute'"
            )
        if role == KVConnectorRole.SCHEDULER:
            # Replaces the plain one that super() made: it has no thread or socket before the handshake metadata is set.
            self.connector_scheduler = RoundtripScheduler(vllm_config, self.engine_id, kv_cache_config)
