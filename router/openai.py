"""Request bodies: what the client sent, what prefill gets, what decode gets. Values keep the client's own bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.errors import bad_request
from router.handle import INTERNAL, KEY

Fields = dict[str, msgspec.Raw]

_DECODER = msgspec.json.Decoder(Fields)

# Pass-through objects of vLLM's request models; what they hold can reach the same place as a top-level field.
_PASS_THROUGH = ("extra_body", "vllm_xargs", "extra_args")

# Prefill makes one token that nobody reads. What does not change the prompt is left out, since it could make that one
# token fail (a tool call cut after a token), cost time (grammars, candidates) or stop it before the KV is handed over.
_NOT_FOR_PREFILL = frozenset(
    {
        "stream", "stream_options", "max_completion_tokens", "n", "best_of", "use_beam_search", "length_penalty",
        "logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs", "echo", "stop", "stop_token_ids", "ignore_eos",
        "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "return_token_ids", "return_tokens_as_token_ids", "return_token_offsets", "return_prompt_text", "return_mm_kwargs",
        "routed_experts_prompt_start", "allowed_token_ids", "bad_words", "logit_bias", "thinking_token_budget",
        "repetition_detection", "stream_interval",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Body:
    """A client's request. `fields` holds no internal field any more; `conversation` is the body's id, unchecked."""

    fields: Fields
    model: str
    stream: bool
    conversation: object
    is_prefillable: bool
    size: int


def parse(raw: bytes) -> Body:
    """Raises a 400 `Fault` that says what is wrong with the body."""
    try:
        return _parse(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not a JSON object: {error}.") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None


def _parse(raw: bytes) -> Body:
    raw.decode()  # The decoder below leaves values unread, and with them bytes that are no text.
    fields = _DECODER.decode(raw)
    conversation = _value(fields, "conversation_id")
    for name in (*INTERNAL, "conversation_id"):
        fields.pop(name, None)
    for name in _PASS_THROUGH:
        if name in fields:
            fields[name] = _without_internal(fields[name])
    model, stream = _value(fields, "model"), _value(fields, "stream")
    if stream not in (None, True, False):
        raise bad_request("stream must be true or false.")
    return Body(
        fields=fields,
        model=model if isinstance(model, str) else "",
        stream=bool(stream),
        conversation=conversation,
        is_prefillable=_is_prefillable(fields),
        size=len(raw),
    )


def _is_prefillable(fields: Fields) -> bool:
    """Whether one prefill can serve the request.

    It can't for several prompts in one, for log-probabilities of the prompt itself, and for beam search, whose beams vLLM
    runs as requests of their own, without `kv_transfer_params`.
    """
    if _value(fields, "prompt_logprobs") is not None or _value(fields, "echo") or _value(fields, "use_beam_search"):
        return False
    prompt = fields.get("prompt")
    if prompt is None or not bytes(prompt).lstrip().startswith(b"["):
        return True
    entries = msgspec.json.decode(prompt)
    return len(entries) == 1 or all(isinstance(entry, int) for entry in entries)


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


def _without_internal(raw: msgspec.Raw) -> msgspec.Raw:
    """`raw` itself when no object in it has an internal field, however its name is escaped."""
    value = msgspec.json.decode(raw)
    cleaned = _cleaned(value)
    return raw if cleaned == value else msgspec.Raw(msgspec.json.encode(cleaned))


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(inner) for key, inner in value.items() if key not in INTERNAL}
    if isinstance(value, list):
        return [_cleaned(inner) for inner in value]
    return value
