"""Request bodies: what the client sent, what prefill gets, what decode gets. Values keep the client's own bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.errors import bad_request
from router.handle import KEY

Fields = dict[str, msgspec.Raw]

_DECODER = msgspec.json.Decoder(Fields)

# Pass-through objects of vLLM's request models; what they hold can reach the same place as a top-level field.
_PASS_THROUGH = ("extra_body", "vllm_xargs", "extra_args")

# Prefill makes one token that nobody reads. What does not change the prompt is left out, since it could make that one
# token fail (a tool call cut after a token), cost time (grammars, candidates) or stop it before the KV is handed over.
_NOT_FOR_PREFILL = frozenset(
    {
        "stream", "stream_options", "max_completion_tokens", "n", "best_of", "use_beam_search", "length_penalty",
        "logprobs", "top_logprobs", "prompt_logprobs", "echo", "stop", "stop_token_ids", "ignore_eos",
        "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "return_token_ids", "return_tokens_as_token_ids", "allowed_token_ids", "bad_words", "logit_bias",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Body:
    """A client's request. `fields` holds no internal field any more; `conversation` is the body's id, unchecked."""

    fields: Fields
    model: str
    stream: bool
    conversation: object
    size: int


def parse(raw: bytes) -> Body:
    """Raises a 400 `Fault` that says what is wrong with the body."""
    try:
        fields = _DECODER.decode(raw)
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not a JSON object: {error}.") from None
    fields.pop(KEY, None)
    conversation = fields.pop("conversation_id", None)
    for name in _PASS_THROUGH:
        if name in fields:
            fields[name] = msgspec.Raw(msgspec.json.encode(_without_key(msgspec.json.decode(fields[name]))))
    model, stream = _value(fields, "model"), _value(fields, "stream")
    if stream not in (None, True, False):
        raise bad_request("stream must be true or false.")
    return Body(
        fields=fields,
        model=model if isinstance(model, str) else "",
        stream=bool(stream),
        conversation=None if conversation is None else msgspec.json.decode(conversation),
        size=len(raw),
    )


def skips_prefill(body: Body) -> bool:
    """Whether one prefill can't serve the request: several prompts in one, or log-probabilities of the prompt itself."""
    fields = body.fields
    if _value(fields, "prompt_logprobs") is not None or _value(fields, "echo"):
        return True
    prompt = fields.get("prompt")
    if prompt is None or not bytes(prompt).lstrip().startswith(b"["):
        return False
    entries = msgspec.json.decode(prompt)
    return len(entries) != 1 and not all(isinstance(entry, int) for entry in entries)


def for_prefill(body: Body, params: Mapping[str, Any]) -> bytes:
    """One token, not streamed, everything that shapes the prompt kept."""
    fields: dict[str, Any] = {name: value for name, value in body.fields.items() if name not in _NOT_FOR_PREFILL}
    # min_tokens 1: a first token that ends the text would end the request before vLLM hands its blocks over.
    fields |= {"max_tokens": 1, "min_tokens": 1, KEY: params}
    if "tools" in fields:
        fields["tool_choice"] = "none"
    return msgspec.json.encode(fields)


def for_decode(body: Body, params: Mapping[str, Any] | None) -> bytes:
    """The client's fields as they came; with prefill's params when it gave any."""
    if params is None:
        return msgspec.json.encode(body.fields)
    return msgspec.json.encode({**body.fields, KEY: params})


def for_release(body: Body, params: Mapping[str, Any]) -> bytes:
    """A decode request whose only use is that decode fetches prefill's blocks, so that prefill frees them."""
    return for_prefill(body, params)


def _value(fields: Fields, name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def _without_key(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_key(inner) for key, inner in value.items() if key != KEY}
    if isinstance(value, list):
        return [_without_key(inner) for inner in value]
    return value
