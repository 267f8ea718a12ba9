"""Faults as a client sees them: a status, an OpenAI-shaped body, and never an address of ours."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole error response: what goes to the client before any byte of a good one."""

    status: int
    body: bytes
    retry_after: int | None = None


class Fault(Exception):
    """A turn that ends here, with the answer for its client."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class EngineFault(Exception):
    """An engine failed in a way that another attempt may mend. `leg` is "prefill" or "decode"; `reason` is for our logs."""

    def __init__(self, leg: str, reason: str) -> None:
        super().__init__(f"{leg}: {reason}")
        self.leg = leg
        self.reason = reason


_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
}


def body(status: int, message: str) -> bytes:
    kind = _TYPES.get(status, "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def fault(status: int, message: str, retry_after: int | None = None) -> Fault:
    return Fault(Answer(status, body(status, message), retry_after))


def bad_request(message: str) -> Fault:
    return fault(400, message)


def unavailable(message: str) -> Fault:
    return fault(503, message, retry_after=1)


def event(message: str) -> bytes:
    """The last event of a stream that broke after it had begun; no [DONE] follows it."""
    return b"data: " + body(502, message) + b"\n\n"


def passed_on(status: int, upstream: bytes, secrets: tuple[bytes, ...]) -> Fault:
    """An engine's own refusal, unless its text would tell a client where the engine is."""
    if any(secret in upstream for secret in secrets):
        return fault(status, "The engine refused this request.")
    return Fault(Answer(status, upstream))
