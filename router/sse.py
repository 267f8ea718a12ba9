"""Server-sent events, bytes to events and back. No I/O.

Joining what `Splitter` returns gives the bytes it was fed: nothing is added, dropped or changed here but in `without_field`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

# A line end followed by an empty line. A CR at the end of a read may be half a CRLF; taking it for a whole line end only
# moves the LF to the front of the next event, where it is an empty line without meaning.
_BORDER = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE = re.compile(rb"\r\n|\n|\r")
_LONGEST_BORDER = 4

LIMIT = 1024 * 1024

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TooLong(ValueError):
    """An event longer than `LIMIT` bytes that seems to hold the hidden field: it can neither pass nor be cleaned."""


class Splitter:
    """Cuts a stream at the borders of events. An event above `LIMIT` bytes comes out in parts, none with `hidden` in it."""

    def __init__(self, hidden: bytes) -> None:
        self._hidden = hidden
        self._buffer = bytearray()
        self._is_in_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, each with its closing empty line. Raises `TooLong`."""
        start = max(0, len(self._buffer) - _LONGEST_BORDER)
        self._buffer += data
        events = []
        taken = 0
        for border in _BORDER.finditer(self._buffer, start):
            events.append(self._checked(bytes(self._buffer[taken : border.end()])))
            self._is_in_long = False
            taken = border.end()
        del self._buffer[:taken]
        if len(self._buffer) > (0 if self._is_in_long else LIMIT):
            events.append(self._long_part())
        return events

    def rest(self) -> bytes:
        """What followed the last whole event when the stream ended. Raises `TooLong`."""
        rest = self._checked(bytes(self._buffer))
        self._buffer.clear()
        return rest

    def _long_part(self) -> bytes:
        """All that can leave of a long event now: a border or `hidden` may begin in the bytes that stay."""
        self._is_in_long = True
        end = max(0, len(self._buffer) - max(len(self._hidden), _LONGEST_BORDER))
        part = self._checked(bytes(self._buffer))[:end]
        del self._buffer[:end]
        return part

    def _checked(self, part: bytes) -> bytes:
        if self._is_in_long and self._hidden in part:
            raise TooLong
        return part


def data(event: bytes) -> bytes:
    """The event's data lines joined with LF, without comments and other fields."""
    lines = []
    for line in _LINE.split(event):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines)


def fields(event: bytes) -> dict[str, Any] | None:
    """The event's JSON object, None when its data is something else."""
    try:
        return msgspec.json.decode(data(event), type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def without_field(event: bytes, name: str) -> tuple[bytes, dict[str, Any] | None]:
    """(`event` without the top-level field `name`, the event's fields) or (`event`, None) when it does not have it.

    Only an event that has the field is written anew, and of it only the top level: every other value keeps its bytes. An
    event that said nothing else (no choices, no usage) becomes b"".
    """
    if f'"{name}"'.encode() not in event:
        return event, None
    try:
        raw = _FIELDS.decode(data(event))
    except msgspec.DecodeError:
        return event, None
    if name not in raw:
        return event, None
    decoded: dict[str, Any] = {key: msgspec.json.decode(value) for key, value in raw.items()}
    del raw[name]
    if decoded.get("choices") == [] and not decoded.get("usage"):
        return b"", decoded
    return _rebuilt(event, msgspec.json.encode(raw)), decoded


def _rebuilt(event: bytes, payload: bytes) -> bytes:
    """`event` with its data lines replaced by one; comments, other fields and line ends stay."""
    parts = []
    written = False
    position = 0
    for end in [*_LINE.finditer(event), None]:
        line = event[position : end.start() if end else len(event)]
        line_end = event[end.start() : end.end()] if end else b""
        position = end.end() if end else len(event)
        if not line.startswith(b"data:"):
            parts.append(line + line_end)
        elif not written:
            prefix = b"data: " if line.startswith(b"data: ") else b"data:"
            parts.append(prefix + payload + line_end)
            written = True
    return b"".join(parts)
