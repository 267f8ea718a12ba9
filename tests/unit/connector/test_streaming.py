import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from connector.streaming import with_handle, wrap

PARAMS = {"remote_engine_id": "e1", "kvr": {"version": 1}}
FINISH = 'data: {"id":"x","choices":[{"index":0,"delta":{"content":"é"},"finish_reason":"stop"}]}\n\n'
TEXT = 'data: {"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
USAGE = 'data: {"id":"x","choices":[],"usage":{"total_tokens":3}}\n\n'
DONE = "data: [DONE]\n\n"


def test_the_finish_chunk_gains_the_params_and_keeps_its_own_bytes() -> None:
    event = with_handle(FINISH, PARAMS)
    assert event is not None and event.startswith(FINISH[: -len("}\n\n")])
    assert json.loads(event.removeprefix("data: ")) == json.loads(FINISH.removeprefix("data: ")) | {
        "kv_transfer_params": PARAMS
    }


@pytest.mark.parametrize("event", [TEXT, USAGE, DONE, ": comment\n\n"])
def test_every_other_chunk_is_left_alone(event: str) -> None:
    assert with_handle(event, PARAMS) is None


class Serving:
    """Stands where vLLM's serving class stands: yields a chunk per output, closes with usage and [DONE]."""

    def __init__(self) -> None:
        self.closed = False

    async def stream(self, request: object, result_generator: AsyncIterator[Any], name: str = "") -> AsyncIterator[str]:
        try:
            async for _ in result_generator:
                yield TEXT
            yield FINISH
            yield USAGE
            yield DONE
        finally:
            self.closed = True


async def outputs(as_pairs: bool) -> AsyncIterator[Any]:
    for params in (None, PARAMS):
        output = SimpleNamespace(kv_transfer_params=params)
        yield (0, output) if as_pairs else output


@pytest.mark.parametrize("as_pairs", [False, True])
async def test_a_stream_gains_the_handle_once(as_pairs: bool) -> None:
    streamed = wrap(Serving.stream)  # type: ignore[arg-type]
    events = [event async for event in streamed(Serving(), None, outputs(as_pairs), name="n")]
    assert [event for event in events if "kv_transfer_params" in event] == [with_handle(FINISH, PARAMS)]
    assert [event for event in events if "kv_transfer_params" not in event] == [TEXT, TEXT, USAGE, DONE]


async def test_a_client_that_leaves_closes_the_inner_stream() -> None:
    serving = Serving()
    events = wrap(Serving.stream)(serving, None, outputs(False))  # type: ignore[arg-type]
    assert await anext(events) == TEXT
    await events.aclose()
    assert serving.closed
