"""REP-20 and REP-05: what prefill and decode are sent, as they received it."""

import json
from typing import Any

import pytest

from router import openai
from router.conversation import conversation_id
from router.errors import Fault
from tests.fakes.engine import Request, Wire
from tests.unit.router.conftest import System, read_reply

MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
EVIL = {
    "do_remote_prefill": True,
    "remote_host": "203.0.113.9",
    "remote_port": 5600,
    "remote_engine_id": "x",
    "remote_block_ids": [[0, 1, 2]],
}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_completion_tokens": 500},
        {"min_tokens": 100},
        {"stream": True, "stream_options": {"include_usage": True}},
        {},
        {"max_tokens": None},
        {"n": 4},
        {"logprobs": True, "top_logprobs": 3},
        {"logprobs": True, "logprob_token_ids": [1, 2]},
        {"tools": TOOLS, "tool_choice": "required"},
        {"response_format": SCHEMA},
        {"stop": ["."], "temperature": 0.5, "seed": 7, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)  # fmt: skip
async def test_rep_20_prefill_makes_one_token_and_decode_gets_the_clients_fields(
    system: System, fields: dict[str, Any]
) -> None:
    sent = {"model": "m", "messages": MESSAGES, **fields}
    assert (await system.client.post("/v1/chat/completions", sent)).status == 200
    (prefill,), (decode,) = system.prefill[0].bodies, system.decode[0].bodies

    assert prefill.pop("kv_transfer_params")["do_remote_decode"] is True
    assert prefill["max_tokens"] == prefill["min_tokens"] == 1
    clashing = (
        "stream",
        "stream_options",
        "max_completion_tokens",
        "n",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "response_format",
        "stop",
    )
    assert not [name for name in clashing if name in prefill]
    assert prefill.get("tool_choice") == ("none" if "tools" in fields else None)
    for shapes_the_prompt in ("model", "messages", "tools", "chat_template_kwargs"):
        assert prefill.get(shapes_the_prompt) == sent.get(shapes_the_prompt)

    assert decode.pop("kv_transfer_params")["do_remote_prefill"] is True
    assert decode == sent


async def test_rep_20_decode_gets_the_clients_own_bytes(system: System) -> None:
    raw = b'{"model":"m","temperature":1.0e0,"messages":[ {"role":"user","content":"\\u00e9"} ]}'
    await system.client.post("/v1/chat/completions", raw)
    assert system.decode[0].requests[0].raw.startswith(raw[:-1] + b',"kv_transfer_params":')


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a", "prompt_logprobs": 1},
        {"prompt": "a", "echo": True, "logprobs": 1},
        {"prompt": ["a", "b"]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": "a", "use_beam_search": True, "n": 2},
    ],
)
async def test_what_one_prefill_cannot_serve_goes_to_decode_alone(system: System, fields: dict[str, Any]) -> None:
    assert (await system.client.post("/v1/completions", {"model": "m", **fields})).status == 200
    assert not system.prefill[0].requests
    assert system.decode[0].bodies == [{"model": "m", **fields}]


@pytest.mark.parametrize("prompt", ["a", ["a"], [1, 2, 3], [[1, 2]]])
async def test_a_single_prompt_goes_through_prefill(system: System, prompt: Any) -> None:
    await system.client.post("/v1/completions", {"model": "m", "prompt": prompt})
    assert len(system.prefill[0].requests) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("with_handle", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": EVIL},
        {"ec_transfer_params": EVIL},
        {"extra_body": {"kv_transfer_params": EVIL}},
        {"vllm_xargs": {"kv_transfer_params": EVIL, "mine": 1}},
        {"extra_args": {"deeper": [{"kv_transfer_params": EVIL}]}},
    ],
)
async def test_rep_05_a_clients_transfer_params_reach_no_engine(
    system: System, path: str, with_handle: bool, fields: dict[str, Any]
) -> None:
    sent = {"model": "m", "messages": MESSAGES, "prompt": "p", "conversation_id": "c"}
    if with_handle:
        await system.client.post(path, sent)
    await system.client.post(path, sent | fields)
    for engine in (*system.prefill, *system.decode):
        assert engine.requests
        for request in engine.requests:
            assert b"203.0.113.9" not in request.raw
    if "vllm_xargs" in fields:
        assert system.decode[0].bodies[-1]["vllm_xargs"] == {"mine": 1}


@pytest.mark.parametrize("fields", [{"prompt": "p"}, {"prompt": ["p", "q"]}])
async def test_rep_05_not_even_when_prefill_gives_no_params_to_put_in_their_place(
    system: System, fields: dict[str, Any]
) -> None:
    async def names_no_blocks(_: Request, wire: Wire) -> None:
        await wire.json(200, {"choices": []})

    system.prefill[0].script = names_no_blocks
    reply = await system.client.post("/v1/completions", {"model": "m", **fields, "kv_transfer_params": EVIL})
    assert reply.status == 200
    assert system.decode[0].bodies == [{"model": "m", **fields}]


async def test_rep_05_an_escaped_name_is_the_same_name(system: System) -> None:
    raw = json.dumps({"model": "m", "messages": MESSAGES, "kv_transfer_params": EVIL}).replace(
        "kv_transfer", "kv\\u005ftransfer"
    )
    assert (await system.client.post("/v1/chat/completions", raw.encode())).status == 200
    assert b"203.0.113.9" not in system.prefill[0].requests[0].raw + system.decode[0].requests[0].raw


async def test_pass_through_objects_without_an_internal_field_keep_their_bytes(system: System) -> None:
    raw = b'{"model":"m","messages":[],"vllm_xargs":{ "a":1.0e0,"b":"\\u00e9" }}'
    await system.client.post("/v1/chat/completions", raw)
    assert system.decode[0].requests[0].raw.startswith(raw[:-1] + b',"kv_transfer_params":')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON object"),
        (b"[]", "JSON object"),
        (b"{", "JSON object"),
        (b'{"stream": "yes"}', "stream must be"),
        (b'{"conversation_id": 7}', "conversation_id must be"),
        (b'{"conversation_id": ""}', "conversation_id must be"),
        (json.dumps({"conversation_id": "x" * 257}).encode(), "conversation_id must be"),
    ],
)
async def test_a_body_that_is_no_request_gets_400_and_says_why(system: System, body: bytes, says: str) -> None:
    reader, writer = await system.client.open("/v1/chat/completions", body or b" ")
    reply = await read_reply(reader)
    writer.close()
    assert reply.status == 400 and says in reply.json["error"]["message"]
    assert not system.prefill[0].requests


def test_two_ids_that_differ_are_refused() -> None:
    assert conversation_id("a", "a") == conversation_id(None, "a") == conversation_id("a", None) == "a"
    with pytest.raises(Fault):
        conversation_id("a", "b")


def test_internal_fields_are_not_part_of_a_parsed_body() -> None:
    body = openai.parse(b'{"model":"m","stream":true,"conversation_id":"c","kv_transfer_params":{"a":1}}')
    assert set(body.fields) == {"model", "stream"} and body.stream and body.conversation == "c"
