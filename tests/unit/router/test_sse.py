import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import sse
from router.handle import KEY_BYTES
from tests.fakes.engine import DONE, FINISH, TEXT, handle, with_field

FIELD = "kv_transfer_params"
STREAM = st.lists(
    st.sampled_from(
        [b"data: a", b"data:b", b": ping", b"event: x", b"\r\n", b"\n", b"\r", b"\n\n", b"\r\n\r\n", b"\xe2\x80\xa8"]
    ),
    max_size=30,
).map(b"".join)


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    splitter, events, position = sse.Splitter(KEY_BYTES), [], 0
    for size in sizes:
        events += splitter.feed(data[position : position + size])
        position += size
    events += splitter.feed(data[position:])
    return [*events, splitter.rest()]


@given(STREAM, st.lists(st.integers(0, 9), max_size=20))
def test_no_byte_is_lost_added_or_moved(data: bytes, sizes: list[int]) -> None:
    assert b"".join(split(data, sizes)) == data


@given(STREAM, st.lists(st.integers(0, 9), max_size=20))
def test_events_are_the_same_however_the_reads_fall(data: bytes, sizes: list[int]) -> None:
    def said(parts: list[bytes]) -> list[bytes]:
        return [sse.data(part) for part in parts if sse.data(part)]

    assert said(split(data, sizes)) == said(split(data, []))


@given(STREAM)
def test_events_are_what_the_standard_says(data: bytes) -> None:
    """Against the definition: lines end in CRLF, LF or CR; an empty line ends an event."""
    expected: list[list[bytes]] = [[]]
    for line in re.split(rb"\r\n|\n|\r", data):
        if line:
            expected[-1].append(line)
        else:
            expected.append([])
    values = [
        [line[6:] if line.startswith(b"data: ") else line[5:] for line in lines if line.startswith(b"data:")]
        for lines in expected
    ]
    assert [sse.data(part) for part in split(data, []) if sse.data(part)] == [
        b"\n".join(v) for v in values if b"\n".join(v)
    ]


def test_an_event_without_the_field_is_the_same_object() -> None:
    for event in (TEXT, FINISH, DONE, b": ping\n\n"):
        assert sse.without_field(event, FIELD) == (event, None)


def test_the_field_goes_and_every_other_byte_stays() -> None:
    visible, fields = sse.without_field(with_field(FINISH, handle()), FIELD)
    assert visible == FINISH
    assert fields is not None and fields[FIELD] == handle()


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_line_ends_comments_and_other_lines_stay(end: bytes) -> None:
    line = end[: len(end) // 2]
    payload = FINISH.removeprefix(b"data: ").strip()
    event = b": note" + line + b"event: x" + line + b"data:" + payload + end
    hidden = b": note" + line + b"event: x" + line + with_field(b"data:" + payload, handle()) + end
    assert sse.without_field(hidden, FIELD)[0] == event


def test_numbers_and_escapes_of_other_fields_keep_their_bytes() -> None:
    event = b'data: {"id":"c","x":1.0e2,"y":"\\u00e9\\/","choices":[{"z": -0.50}]}\n\n'
    assert sse.without_field(with_field(event, handle()), FIELD)[0] == event


def test_the_name_inside_content_is_content() -> None:
    event = b"data: " + json.dumps({"choices": [{"delta": {"content": '"kv_transfer_params": 1'}}]}).encode() + b"\n\n"
    assert sse.without_field(event, FIELD) == (event, None)


def test_a_nested_field_of_that_name_is_the_clients() -> None:
    event = b'data: {"choices":[{"message":{"kv_transfer_params":1}}]}\n\n'
    assert sse.without_field(event, FIELD) == (event, None)


def test_a_chunk_that_said_nothing_else_goes_whole() -> None:
    visible, fields = sse.without_field(with_field(b'data: {"id":"c","choices":[]}\n\n', handle()), FIELD)
    assert visible == b"" and fields is not None
    with_usage = b'data: {"id":"c","choices":[],"usage":{"total_tokens":3}}\n\n'
    assert sse.without_field(with_field(with_usage, handle()), FIELD)[0] == with_usage


@given(st.integers(0, 200), st.lists(st.integers(1, 100_000), max_size=40))
@settings(max_examples=10)
def test_a_long_event_passes_in_parts_and_the_next_is_whole_again(extra: int, sizes: list[int]) -> None:
    long = b"data: " + b"x" * (sse.LIMIT * 2 + extra) + b"\r\n\r\n"
    events = split(long + TEXT + DONE, sizes)
    assert b"".join(events) == long + TEXT + DONE
    assert [event for event in events if event][-2:] == [TEXT, DONE]


def test_of_a_long_event_only_a_little_is_kept() -> None:
    splitter = sse.Splitter(KEY_BYTES)
    out = 0
    for count in range(1, 100):
        out += sum(map(len, splitter.feed(b"x" * 65536)))
        assert count * 65536 - out <= sse.LIMIT
    assert 99 * 65536 - out < 100


@pytest.mark.parametrize("at", [sse.LIMIT - 5, sse.LIMIT + 70_000])
def test_a_long_event_with_the_field_is_refused_before_a_byte_of_it_leaves(at: int) -> None:
    event = b"data: {" + b" " * at + KEY_BYTES + b":1"
    splitter = sse.Splitter(KEY_BYTES)
    out = []
    with pytest.raises(sse.TooLong):
        for start in range(0, len(event) + 65536, 65536):
            out += splitter.feed(event[start : start + 65536].ljust(65536))
    assert KEY_BYTES[:5] not in b"".join(out)
