from hypothesis import given
from hypothesis import strategies as st

from router.nodes import Node
from router.placement import choose_decode, choose_pair, lacking_builds, lacking_roles
from router.upstream import Client

CLIENT = Client("http://h:1", lambda: 1)


def node(role: str, build: str = "", healthy: bool = True, draining: bool = False, load: int = 0) -> Node:
    return Node(f"{role}-0", role, "http://h:1", build, CLIENT, draining, healthy, open_requests=load, open_tokens=load)


nodes = st.builds(node, st.just("x"), st.sampled_from("abc"), st.booleans(), st.booleans(), st.integers(0, 9))
tables = st.lists(nodes, max_size=6)


@given(tables, tables, st.data())
def test_a_pair_is_of_one_build_and_found_whenever_there_is_one(
    prefill: list[Node], decode: list[Node], data: st.DataObject
) -> None:
    home = data.draw(st.sampled_from([None, *decode]))
    avoid = set(
        data.draw(st.lists(st.sampled_from([*prefill, *decode]), max_size=4) if prefill + decode else st.just([]))
    )
    pair = choose_pair(prefill, decode, home, avoid)
    possible = [(p, d) for p in prefill for d in decode if p.serving and d.serving and p.build == d.build]
    assert (pair is None) == (not possible)
    if pair is None:
        assert lacking_roles(prefill, decode) or lacking_builds(prefill, decode)
        return
    assert pair in possible and not lacking_roles(prefill, decode) and not lacking_builds(prefill, decode)
    assert len(avoid & {*pair}) == min(len(avoid & {*other}) for other in possible)
    if home is not None and any(d is home and not {p, d} & avoid for p, d in possible):
        assert pair.decode is home


def test_a_conversation_whose_engine_drains_stays_with_its_build() -> None:
    prefill = [node("prefill", "blue"), node("prefill", "green")]
    home, blue, green = node("decode", "blue", draining=True), node("decode", "blue", load=9), node("decode", "green")
    pair = choose_pair(prefill, [home, green, blue], home)
    assert pair == (prefill[0], blue)


def test_among_engines_of_one_build_the_one_with_the_least_work() -> None:
    prefill, decode = [node("prefill", load=3), node("prefill", load=1)], [node("decode", load=2), node("decode")]
    assert choose_pair(prefill, decode, None) == (prefill[1], decode[1])
    assert choose_pair(prefill, decode, None, {prefill[1], decode[1]}) == (prefill[0], decode[0])
    assert choose_pair(prefill, decode, decode[0]) == (prefill[1], decode[0])


def test_decode_alone_is_chosen_by_build_too() -> None:
    blue, green = node("decode", "blue", load=5), node("decode", "green")
    assert choose_decode([blue, green], "blue", green) is blue
    assert choose_decode([green], "blue", None) is None


def test_what_is_lacking() -> None:
    blue, green, none = node("prefill", "blue"), node("decode", "green"), node("decode", "")
    assert lacking_roles([], [green]) == ["prefill"]
    assert lacking_roles([blue], [node("decode", "blue", draining=True)]) == ["decode"]
    assert lacking_builds([blue], [green, none]) == [
        "decode of build blue",
        "prefill of no build",
        "prefill of build green",
    ]
    assert lacking_builds([blue], [green, node("decode", "blue")]) == []
