"""The scheduler side of the connector: every handle is verified before a read is queued, and a failed read ends in a recompute.

Overrides scheduler-side methods only; their signatures are the same from vLLM 0.29 to 0.33.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.logger import init_logger

from connector import digest
from connector.handle import KEY, PEER_FIELDS, Cover, Refusal, block_groups, names_peer, parse_cover
from connector.live import LiveValues
from connector.policy import same_prompt, verified_blocks
from connector.used import UsedHandles

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger(__name__)


class UnsupportedModel(ValueError):
    """The model or parallel layout cannot be pulled by verified prefix. The text names what, and the fix."""


@dataclass(slots=True)
class Pull:
    """What became of one request's handle. Owned by the scheduler from the first look at the request until it finishes."""

    refused: Refusal | None = None
    processed: bool = False
    pulled_tokens: int = 0
    block_ids: frozenset[int] = field(default_factory=frozenset)
    prompt: Cover | None = None
    """The digests that the handle was verified with; prefill's answer carries the same ones."""

    def fail(self) -> None:
        self.refused, self.pulled_tokens = Refusal.LOAD_FAILED, 0


class RoundtripScheduler(NixlPullConnectorScheduler):  # type: ignore[misc]
    def __init__(self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._require_supported()
        self._pulls: dict[str, Pull] = {}
        self._used = UsedHandles()
        self._live = LiveValues(self, vllm_config.kv_transfer_config.kv_role, os.environ)

    def on_new_request(self, request: Request) -> None:
        """Verifies first: vLLM acts on the params from here on, starting with heartbeats to the peer they name."""
        self._live.poll(time.monotonic())
        params = request.kv_transfer_params
        if params and (params.get("do_remote_prefill") or params.get("remote_block_ids")):
            self._pulls[request.request_id] = self._verify(request, params)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """May be asked many times for one request: while it waits for memory, after a failed read, after preemption."""
        pull = self._pulls.get(request.request_id)
        if pull is not None and pull.processed:
            # Asked again after the read was queued: it failed, or the request was preempted. vLLM would count the
            # tokens as loading but queue no second read, and the request would wait for ever.
            if not request.num_preemptions:
                pull.fail()
            return 0, False
        if pull is not None and pull.refused is not None:
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[no-any-return]

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        pull = self._pulls.get(request.request_id)
        if pull is None or pull.processed:
            return
        pull.processed = True
        if num_external_tokens:
            pull.pulled_tokens = num_external_tokens
            pull.block_ids = frozenset(block for group in blocks.get_unhashed_block_ids_all_groups() for block in group)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        # vLLM 0.29 has no failed_recving.
        failed = getattr(connector_output, "failed_recving", None) or ()
        invalid = connector_output.invalid_block_ids
        if not failed and not invalid:
            return
        for request_id, pull in self._pulls.items():
            if request_id in failed or not pull.block_ids.isdisjoint(invalid):
                pull.fail()

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self._live.poll(time.monotonic())
        pull = self._pulls.pop(request.request_id, None)
        # vLLM rewrites the role flags of these params in place; read the role first.
        on_prefill = bool((request.kv_transfer_params or {}).get("do_remote_decode"))
        held, params = super().request_finished(request, block_ids)
        if params is None:
            return held, params
        cover = pull.prompt if on_prefill and pull is not None else None
        if cover is None:
            cover = self._cover(request, request.num_prompt_tokens if on_prefill else _tokens_with_kv(request))
        entry: dict[str, Any] = {} if cover is None else cover.to_json()
        if on_prefill and pull is not None:
            entry["pulled_tokens"] = pull.pulled_tokens
            if pull.refused is not None:
                entry["refused"] = pull.refused.value
        params[KEY] = entry or None
        return held, params

    def _verify(self, request: Request, params: dict[str, Any]) -> Pull:
        """Cuts `params` to what is verified, so that vLLM's own code then pulls exactly that."""
        groups = block_groups(params)
        if groups is None or len(groups) != len(self.kv_cache_config.kv_cache_groups) or not names_peer(params):
            return self._forget_peer(request, params, Refusal.MALFORMED)
        if not self._used.add((params["remote_engine_id"], params["remote_request_id"])):
            return self._forget_peer(request, params, Refusal.USED)
        cover = parse_cover(params.get(KEY))
        if isinstance(cover, Refusal):
            return self._refuse(request, params, cover)
        prompt = self._cover(request, request.num_prompt_tokens)
        if prompt is None:
            return self._refuse(request, params, Refusal.UNVERIFIABLE)
        if params.get("do_remote_prefill"):
            other = same_prompt(prompt, cover)
            return Pull() if other is None else self._refuse(request, params, other)
        verified = verified_blocks(prompt, cover)
        if isinstance(verified, Refusal):
            return self._refuse(request, params, verified)
        if any(len(group) < verified for group in groups):
            return self._refuse(request, params, Refusal.MALFORMED)
        # Reads are aligned at the tail, so the token count and the end of every group have to be cut together.
        params["remote_num_tokens"] = verified * self.block_size
        params["remote_block_ids"] = [group[:verified] for group in groups]
        return Pull(prompt=prompt)

    def _refuse(self, request: Request, params: dict[str, Any], reason: Refusal) -> Pull:
        """Nothing is read, but the peer still hears that its blocks are free: an empty read is that message."""
        logger.debug("Handle of %s refused: %s", request.request_id, reason.value)
        params["remote_num_tokens"] = 0
        params["remote_block_ids"] = [[] for _ in self.kv_cache_config.kv_cache_groups]
        return Pull(refused=reason)

    def _forget_peer(self, request: Request, params: dict[str, Any], reason: Refusal) -> Pull:
        """No peer to tell, or it was told before: the request goes on as if it had come without a handle."""
        logger.debug("Handle of %s refused: %s", request.request_id, reason.value)
        params.update(dict.fromkeys(PEER_FIELDS), remote_block_ids=None, do_remote_prefill=False)
        return Pull(refused=reason)

    def _cover(self, request: Request, tokens: int) -> Cover | None:
        """None when token ids do not say what the KV was computed from."""
        if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
            return None
        adapter = request.lora_request.lora_name if request.lora_request is not None else None
        start = digest.seed(self.block_size, request.cache_salt, adapter)
        extras = _extras(request, self.block_size)
        digests, tail = digest.chain(request.all_token_ids[:tokens], self.block_size, start, extras)
        return Cover(self.block_size, tokens, digests, tail)

    def _require_supported(self) -> None:
        if not self.is_bidirectional_kv_xfer_enabled:
            return
        parallel = self.vllm_config.parallel_config
        if self._is_hma_required or self._has_mamba or len(self.kv_cache_config.kv_cache_groups) > 1:
            fault = "this model has sliding-window, state-space or several KV cache groups"
        elif parallel.decode_context_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
            fault = "decode context parallel and pipeline parallel engines"
        else:
            return
        raise UnsupportedModel(
            f"KV Roundtrip cannot give KV back from decode to prefill: {fault} are not supported. hint: set round_trip to false"
        )


def _tokens_with_kv(request: Request) -> int:
    """Tokens whose KV decode has for certain: the last sampled one has none, whatever an overlapped step counted."""
    return int(min(request.num_computed_tokens, len(request.all_token_ids) - 1))


def _extras(request: Request, block_size: int) -> dict[int, bytes]:
    """Per block, the identity of each image or sound whose placeholder tokens start in it."""
    extras: dict[int, bytes] = {}
    for feature in request.mm_features or ():
        block = feature.mm_position.offset // block_size
        extras[block] = extras.get(block, b"") + f"{feature.identifier}@{feature.mm_position.offset};".encode()
    return extras
