import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.digest import DIGEST_BYTES
from connector.handle import Cover, Refusal, block_groups, names_peer, parse_cover

COVER = Cover(block_size=16, tokens=40, digests=b"a" * 2 * DIGEST_BYTES, tail=b"t" * DIGEST_BYTES)
PEER = {
    "remote_engine_id": "e1",
    "remote_request_id": "r1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_round_trip_through_json() -> None:
    assert parse_cover(COVER.to_json()) == COVER


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, Refusal.FORMAT),
        ({"version": None}, Refusal.FORMAT),
        ({"block_size": 0}, Refusal.MALFORMED),
        ({"block_size": True}, Refusal.MALFORMED),
        ({"block_size": "16"}, Refusal.MALFORMED),
        ({"tokens": -1}, Refusal.MALFORMED),
        ({"digests": None}, Refusal.MALFORMED),
        ({"digests": "%%%"}, Refusal.MALFORMED),
        ({"digests": base64.b64encode(b"x" * 17).decode()}, Refusal.MALFORMED),
        ({"digests": base64.b64encode(b"x" * 3 * DIGEST_BYTES).decode()}, Refusal.MALFORMED),
        ({"tail": ""}, Refusal.MALFORMED),
        ({"tail": base64.b64encode(b"x" * 15).decode()}, Refusal.MALFORMED),
    ],
)
def test_each_fault_has_its_reason(change: dict[str, Any], reason: Refusal) -> None:
    assert parse_cover(COVER.to_json() | change) is reason


def test_truncated_digests_cover_less() -> None:
    shorter = parse_cover(COVER.to_json() | {"digests": base64.b64encode(COVER.digests[:DIGEST_BYTES]).decode()})
    assert isinstance(shorter, Cover) and shorter.blocks == 1


def test_no_entry_and_no_mapping() -> None:
    assert parse_cover(None) is Refusal.NO_DIGESTS
    assert parse_cover([1]) is Refusal.MALFORMED


@given(JSON)
def test_any_json_is_refused_not_raised(entry: Any) -> None:
    assert isinstance(parse_cover(entry), Refusal)


@given(st.dictionaries(st.sampled_from(["version", "block_size", "tokens", "digests", "tail"]), JSON))
def test_any_value_in_any_field_is_parsed_or_refused(change: dict[str, Any]) -> None:
    parse_cover(COVER.to_json() | change)


@pytest.mark.parametrize(
    "change",
    [
        {"remote_engine_id": None},
        {"remote_request_id": 7},
        {"remote_host": ""},
        {"remote_port": "5600"},
        {"remote_port": 0},
        {"remote_port": 65_536},
        {"tp_size": None},
        {"tp_size": 0},
        {"remote_blocks_expiry_time": "soon"},
    ],
)
def test_a_peer_that_cannot_be_asked_is_not_named(change: dict[str, Any]) -> None:
    assert names_peer(PEER)
    assert not names_peer(PEER | change)


@pytest.mark.parametrize("groups", [None, [], "abc", [1, 2], [["1"]], [[True]], [[-1]], {"0": [1]}])
def test_block_ids_of_another_shape_are_none(groups: Any) -> None:
    assert block_groups({"remote_block_ids": groups}) is None


def test_block_ids() -> None:
    assert block_groups({"remote_block_ids": [[3, 1], []]}) == [[3, 1], []]
