"""Level 2 of CASES.md: any handle, given to real engines, leads to the answer of a cold run."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.engine.conftest import HOLD_SECONDS
from tests.engine.turns import COLD, Pair, Result, cold, complete, forget, request

BLOCK = 32
Params = dict[str, Any]


@pytest.fixture
def tokens(request: pytest.FixtureRequest) -> Callable[[int], list[int]]:
    """Random token ids, other ones for each test."""
    rnd = random.Random(request.node.name)
    return lambda number: [rnd.randrange(3, 99) for _ in range(number)]


@pytest.fixture
def first(pair: Pair, tokens: Callable[[int], list[int]]) -> tuple[list[int], Params]:
    """A finished first turn: its whole history of 240 tokens, and decode's handle. Prefill has forgotten it."""
    prompt = tokens(200)
    result, _ = pair.turn(prompt)
    time.sleep(0.2)
    forget(pair.prefill)
    return [*prompt, *result.tokens], result.params


def second(pair: Pair, prompt: list[int], handle: Params) -> tuple[Result, Params]:
    """A turn with `handle`, which has to equal a cold run of the same prompt."""
    began = time.monotonic()
    result, kvr = pair.turn(prompt, handle)
    assert time.monotonic() - began < 10
    assert result.same_as(cold(pair.prefill.url, prompt))
    return result, kvr


def test_the_control_extends_the_history_and_pulls_it(pair: Pair, first: tuple[list[int], Params], tokens: Any) -> None:
    history, handle = first
    _, kvr = second(pair, history + tokens(20), handle)
    # The last sampled token has no KV: 239 tokens are 7 whole blocks.
    assert kvr["pulled_tokens"] == 7 * BLOCK and "refused" not in kvr


@pytest.mark.parametrize(
    ("name", "edit", "blocks"),
    [
        ("reasoning dropped", lambda h: h[:100] + h[130:], 100 // BLOCK),
        ("a word changed at the same length", lambda h: [*h[:70], 1, *h[71:]], 70 // BLOCK),
        ("middle summarised", lambda h: [*h[:64], 5, 6, *h[190:]], 2),
        ("system prompt or tools changed", lambda h: [1, *h[1:]], 0),
    ],
)
def test_rep_01_edited_history(
    pair: Pair, first: tuple[list[int], Params], tokens: Any, name: str, edit: Any, blocks: int
) -> None:
    history, handle = first
    _, kvr = second(pair, edit(history) + tokens(20), handle)
    assert kvr["pulled_tokens"] == blocks * BLOCK


@pytest.mark.parametrize("edit", [lambda h: h[:40] + h[42:], lambda h: [*h[:40], 4, *h[40:]]])
def test_rep_07_history_rendered_with_other_tokens(
    pair: Pair, first: tuple[list[int], Params], tokens: Any, edit: Any
) -> None:
    history, handle = first
    _, kvr = second(pair, edit(history) + tokens(20), handle)
    assert kvr["pulled_tokens"] == BLOCK


def test_rep_02_a_consumed_handle_is_not_read_again(pair: Pair, first: tuple[list[int], Params], tokens: Any) -> None:
    history, handle = first
    second(pair, history + tokens(20), dict(handle))
    # Decode reuses the freed blocks for other text.
    for _ in range(5):
        pair.turn(tokens(300))
    forget(pair.prefill)
    _, kvr = second(pair, history + tokens(20), dict(handle))
    assert (kvr["pulled_tokens"], kvr["refused"]) == (0, "used")


def test_rep_03_a_handle_whose_hold_ends_is_not_read(pair: Pair, first: tuple[list[int], Params], tokens: Any) -> None:
    history, handle = first
    for _ in range(20):
        pair.turn(tokens(60), answer=4)
    time.sleep(HOLD_SECONDS - 2)
    forget(pair.prefill)
    _, kvr = second(pair, history + tokens(20), handle)
    assert (kvr["pulled_tokens"], kvr["refused"]) == (0, "load_failed")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remote_block_ids": [[10**6 + n for n in range(8)]]}, "load_failed"),
        ({"remote_engine_id": "no-such-engine"}, "load_failed"),
        ({"remote_engine_id": "no-such-engine", "remote_port": 9}, "load_failed"),
        ({"kvr": None}, "no_digests"),
        ({"kvr": {"version": 7}}, "format"),
        ({"remote_block_ids": [[1, "x"]]}, "malformed"),
        ({"remote_block_ids": [[1, 2]]}, "malformed"),
        ({"remote_port": "5600"}, "malformed"),
    ],
)
def test_a_bad_handle_is_a_recompute(
    pair: Pair, first: tuple[list[int], Params], tokens: Any, change: Params, reason: str
) -> None:
    history, handle = first
    _, kvr = second(pair, history + tokens(20), handle | change)
    assert (kvr["pulled_tokens"], kvr["refused"]) == (0, reason)


def test_rep_04_another_salt_pulls_nothing(pair: Pair, first: tuple[list[int], Params], tokens: Any) -> None:
    history, handle = first
    prompt = history + tokens(20)
    result, kvr = pair.turn(prompt, handle, cache_salt="tenant-b")
    assert (kvr["pulled_tokens"], kvr["refused"]) == (0, "nothing_verified")
    assert result.same_as(cold(pair.prefill.url, prompt))


@pytest.mark.parametrize("length", [BLOCK * 7 - 1, BLOCK * 7, BLOCK * 7 + 1])
def test_prompts_at_a_blocks_border(pair: Pair, first: tuple[list[int], Params], length: int) -> None:
    history, handle = first
    _, kvr = second(pair, history[:length], handle)
    assert kvr["pulled_tokens"] == length // BLOCK * BLOCK


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {
            "do_remote_prefill": True,
            "remote_engine_id": 1,
            "remote_host": [],
            "remote_port": "x",
            "remote_block_ids": "y",
        },
        {
            "do_remote_prefill": True,
            "remote_engine_id": "e",
            "remote_host": "127.0.0.1",
            "remote_port": 9,
            "remote_block_ids": [[1]],
            "remote_request_id": "r",
        },
    ],
)
def test_garbage_given_to_decode_is_a_plain_request(pair: Pair, tokens: Any, params: Params) -> None:
    prompt = tokens(100)
    assert complete(pair.decode.url, prompt, kv_transfer_params=params).same_as(cold(pair.prefill.url, prompt))


def test_decode_does_not_take_the_blocks_of_another_prompt(pair: Pair, tokens: Any) -> None:
    prompt, other = tokens(100), tokens(100)
    body = request(prompt, 1, min_tokens=1, kv_transfer_params=COLD)
    handle = httpx.post(f"{pair.prefill.url}/v1/completions", json=body, timeout=60).json()["kv_transfer_params"]
    assert complete(pair.decode.url, other, kv_transfer_params=handle).same_as(cold(pair.prefill.url, other))


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("options", [None, {"include_usage": True}])
def test_rep_09_streamed_answers_carry_the_handle(pair: Pair, path: str, options: Any) -> None:
    body: Params = {
        "model": "local", "prompt": "hello there", "messages": [{"role": "user", "content": "hello there"}],
        "stream": True, "stream_options": options, "max_tokens": 3, "ignore_eos": True,
        "kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": False},
    }  # fmt: skip
    body.pop("messages" if path == "completions" else "prompt")
    text = httpx.post(f"{pair.decode.url}/v1/{path}", json=body, timeout=60).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    (carrier,) = [chunk for chunk in chunks if chunk.get("kv_transfer_params")]
    assert carrier["choices"][0]["finish_reason"] == "length"
    assert carrier["kv_transfer_params"]["kvr"]["version"] == 1
