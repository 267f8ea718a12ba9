"""One streamed turn with the standard `openai` client, measured; and counters read from a /metrics page."""

from __future__ import annotations

import math
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from runtime.exposition import total

# Rounding differs with the order of a sum: a prompt computed in two parts is not bit-equal to one computed whole.
LOGPROB_TOLERANCE = 0.02

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished turn. `ttft` is seconds from sending the request to the first text; `tokens` are the sampled ones."""

    text: str
    tokens: tuple[str, ...]
    first_logprob: float
    prompt_tokens: int
    ttft: float

    def same_as(self, other: Answer) -> bool:
        """Equal greedy tokens, and the first one as likely."""
        close = math.isclose(self.first_logprob, other.first_logprob, abs_tol=LOGPROB_TOLERANCE)
        return self.tokens == other.tokens and close


def client(url: str, key: str = "none", timeout: float = 300.0) -> OpenAI:
    return OpenAI(base_url=url.rstrip("/") + "/v1", api_key=key, timeout=timeout, max_retries=0)


def ask(
    to: OpenAI, model: str, messages: Sequence[dict[str, str]], *, conversation: str | None = None, **options: Any
) -> Answer:
    """One greedy, streamed turn. `options` are more fields of the request. Raises `openai.OpenAIError`."""
    extra = dict(options.pop("extra_body", {}))
    if conversation is not None:
        extra["conversation_id"] = conversation
    began = time.perf_counter()
    first = math.nan
    texts: list[str] = []
    tokens: list[str] = []
    logprobs: list[float] = []
    prompt_tokens = 0
    stream = to.chat.completions.create(
        model=model, messages=list(messages), stream=True, temperature=0, logprobs=True,
        stream_options={"include_usage": True}, extra_body=extra, **options,
    )  # type: ignore[call-overload]  # fmt: skip
    for chunk in stream:
        if chunk.usage is not None:
            prompt_tokens = chunk.usage.prompt_tokens
        for choice in chunk.choices:
            if choice.logprobs is not None and choice.logprobs.content:
                if math.isnan(first):
                    first = time.perf_counter() - began
                tokens += [entry.token for entry in choice.logprobs.content]
                logprobs += [entry.logprob for entry in choice.logprobs.content]
            texts.append(choice.delta.content or "")
    if not tokens:
        raise RuntimeError("the answer has no tokens")
    return Answer("".join(texts), tuple(tokens), logprobs[0], prompt_tokens, first)


def following(messages: Messages, answer: str, question: str) -> Messages:
    """The history a client sends on the next turn."""
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": question}]


def counter(url: str, name: str, **labels: str) -> float:
    """Sum of all samples called `name` with these labels on `url`/metrics; 0 when there is none."""
    with urllib.request.urlopen(url.rstrip("/") + "/metrics", timeout=10) as answer:
        return total(answer.read().decode(), name, **labels)
