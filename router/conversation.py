"""Which conversation a request belongs to: the caller, the model and the id that the client gave."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from router.errors import bad_request

_LONGEST_ID = 256


@dataclass(frozen=True, slots=True)
class Key:
    """Two callers that use the same conversation id never share an entry: the caller is part of the key."""

    caller: str
    model: str
    conversation: str


def caller(authorization: str | None) -> str:
    """A caller's name that is not its credential."""
    return sha256(authorization.encode()).hexdigest()[:32] if authorization else ""


def conversation_id(in_body: object, in_header: str | None) -> str | None:
    """None when the client named no conversation. Raises a 400 `Fault` for an id that cannot be one."""
    if in_body is not None and in_header is not None and in_body != in_header:
        raise bad_request("conversation_id and the X-Conversation-Id header differ; send one of them.")
    found = in_body if in_body is not None else in_header
    if found is None:
        return None
    if not isinstance(found, str) or not 0 < len(found) <= _LONGEST_ID:
        raise bad_request(f"conversation_id must be a text of 1 to {_LONGEST_ID} characters.")
    return found
