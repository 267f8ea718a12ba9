"""Turns of token ids, at an engine or through a router: exact histories, whatever a tokenizer would make of the text."""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from typing import Any

import httpx

from runtime.fleet import Server
from scripts.turns import LOGPROB_TOLERANCE, counter

MODEL = "local"
COLD = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    tokens: list[int]
    first_logprob: float
    params: dict[str, Any]
    """Decode's `kv_transfer_params`, which only an engine shows."""

    def same_as(self, other: Result) -> bool:
        close = math.isclose(self.first_logprob, other.first_logprob, abs_tol=LOGPROB_TOLERANCE)
        return self.tokens == other.tokens and close


def request(tokens: list[int], answer: int, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL, "prompt": tokens, "temperature": 0, "max_tokens": answer, "ignore_eos": True,
        "logprobs": 1, "return_token_ids": True, **more,
    }  # fmt: skip


def complete(url: str, tokens: list[int], answer: int = 40, *, stream: bool = False, **more: Any) -> Result:
    """A greedy answer of exactly `answer` tokens. Raises `httpx.HTTPStatusError`."""
    body = request(tokens, answer, stream=stream, **more)
    if not stream:
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()
        choice = reply["choices"][0]
        return Result(
            choice["token_ids"], choice["logprobs"]["token_logprobs"][0], reply.get("kv_transfer_params") or {}
        )
    sampled: list[int] = []
    logprobs: list[float] = []
    params: dict[str, Any] = {}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise httpx.HTTPError(str(chunk["error"]))
            params = chunk.get("kv_transfer_params") or params
            for choice in chunk["choices"]:
                sampled += choice["token_ids"] or []
                logprobs += (choice["logprobs"] or {}).get("token_logprobs") or []
    return Result(sampled, logprobs[0], params)


def cold(url: str, tokens: list[int], answer: int = 40) -> Result:
    """The same prompt under a salt of its own: no KV anywhere was computed under it."""
    return complete(url, tokens, answer, cache_salt=str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode engine, asked without a router, as one would be."""

    prefill: Server
    decode: Server

    def turn(
        self, tokens: list[int], handle: dict[str, Any] | None = None, answer: int = 40, **more: Any
    ) -> tuple[Result, dict[str, Any]]:
        """(decode's result, prefill's `kvr`)."""
        params = {**(handle or COLD), "do_remote_decode": True, "do_remote_prefill": False}
        body = request(tokens, 1, min_tokens=1, kv_transfer_params=params, **more)
        reply = httpx.post(f"{self.prefill.url}/v1/completions", json=body, timeout=120).raise_for_status().json()
        given = reply["kv_transfer_params"]
        return complete(self.decode.url, tokens, answer, kv_transfer_params=given, **more), given["kvr"]


def forget(server: Server) -> None:
    """Empties the engine's prefix cache, unless blocks are still held; then what is held stays."""
    httpx.post(f"{server.url}/reset_prefix_cache", timeout=30).raise_for_status()


def kv_usage(server: Server) -> float:
    """Share of KV blocks in use, after a request that makes the engine count anew."""
    complete(server.url, [1, 2, 3], 1, cache_salt=str(uuid.uuid4()))
    return counter(server.url, "vllm:kv_cache_usage_perc")
