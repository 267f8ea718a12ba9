"""vLLM general plugin: puts the handle on streamed answers of versions that leave it out (before 0.33).

The answer's text, and every chunk but the one with `finish_reason`, pass untouched. That chunk gains
`kv_transfer_params`, where 0.33 has it too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import wraps
from inspect import signature
from typing import Any

import vllm

from connector.version import streams_handle

_PREFIX = "data: "
_END = "}\n\n"
_MARK = "kvr_wrapped"

Generator = Callable[..., AsyncGenerator[str, None]]


class Tap:
    """Passes engine outputs on and remembers the last `kv_transfer_params` among them."""

    def __init__(self, outputs: AsyncIterator[Any]) -> None:
        self._outputs = outputs
        self.params: dict[str, Any] | None = None

    def __aiter__(self) -> Tap:
        return self

    async def __anext__(self) -> Any:
        item = await anext(self._outputs)
        # Chat yields outputs, completions yield (prompt index, output).
        output = item[1] if isinstance(item, tuple) else item
        if output.kv_transfer_params:
            self.params = output.kv_transfer_params
        return item


def with_handle(event: str, params: dict[str, Any]) -> str | None:
    """`event` with `params` added when it is the chunk that carries a finish_reason, else None."""
    if not event.startswith(_PREFIX) or not event.endswith(_END):
        return None
    chunk = json.loads(event[len(_PREFIX) :])
    if not any(choice.get("finish_reason") for choice in chunk.get("choices", ())):
        return None
    # Appended to the text, not dumped anew: a client's bytes stay vLLM's own.
    return f'{event[: -len(_END)]},"kv_transfer_params":{json.dumps(params, separators=(",", ":"))}{_END}'


def wrap(generator: Generator) -> Generator:
    """A stream generator method with a `result_generator` parameter -> one whose finish chunk carries the handle."""
    position = list(signature(generator).parameters).index("result_generator")

    @wraps(generator)
    async def streamed(*args: Any, **kwargs: Any) -> AsyncGenerator[str, None]:
        tap = Tap(args[position])
        events = generator(*args[:position], tap, *args[position + 1 :], **kwargs)
        sent = False
        try:
            async for event in events:
                replaced = with_handle(event, tap.params) if tap.params and not sent else None
                sent = sent or replaced is not None
                yield event if replaced is None else replaced
        finally:
            # A client that leaves ends this generator; vLLM's own must end with it, not when it is collected.
            await events.aclose()

    streamed.__dict__[_MARK] = True
    return streamed


def register() -> None:
    """Entry point of `vllm.general_plugins`; vLLM may call it several times in one process."""
    if streams_handle(vllm.__version__):
        return
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    for owner, name in (
        (OpenAIServingChat, "chat_completion_stream_generator"),
        (OpenAIServingCompletion, "completion_stream_generator"),
    ):
        generator = getattr(owner, name)
        if not getattr(generator, _MARK, False):
            setattr(owner, name, wrap(generator))
