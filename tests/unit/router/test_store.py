from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.conversation import Key
from router.handle import Handle
from router.store import Affinity, HandleStore


def key(name: str, caller: str = "", model: str = "m") -> Key:
    return Key(caller, model, name)


def handle(engine: str = "e1") -> Handle:
    return Handle(engine, {}, "decode-0")


class Counted:
    def __init__(self, ttl: float = 8.0, limit: int = 1000) -> None:
        self.fates: Counter[str] = Counter()
        self.ttl = ttl
        self.store = HandleStore(lambda: self.ttl, limit, lambda fate, number: self.fates.update({fate: number}))


def test_rep_02_a_handle_is_taken_once() -> None:
    counted = Counted()
    counted.store.put(key("conv-1"), handle(), now=0)
    assert counted.store.take(key("conv-1"), now=1) is not None
    assert counted.store.take(key("conv-1"), now=1) is None
    assert counted.fates == {"stored": 1, "taken": 1, "missed": 1}


def test_rep_02_a_restarted_engines_handles_are_dropped() -> None:
    counted = Counted()
    for name, engine in (("a", "e1"), ("b", "e1"), ("c", "e2")):
        counted.store.put(key(name), handle(engine), now=0)
    counted.store.drop_engine("e1")
    assert counted.store.take(key("a"), now=1) is counted.store.take(key("b"), now=1) is None
    assert counted.store.take(key("c"), now=1) is not None
    assert counted.fates["engine_gone"] == 2


def test_rep_03_a_handle_lives_for_its_time_from_the_end_of_decodes_turn() -> None:
    counted = Counted(ttl=10 - 2)
    counted.store.put(key("a"), handle(), now=100)
    counted.store.put(key("b"), handle(), now=100)
    assert counted.store.take(key("a"), now=107.9) is not None
    assert counted.store.take(key("b"), now=108.1) is None
    assert counted.fates["expired"] == 1


def test_rep_03_a_shorter_lifetime_holds_for_stored_handles_and_a_longer_one_does_not() -> None:
    counted = Counted(ttl=8)
    for name in ("a", "b", "c", "d"):
        counted.store.put(key(name), handle(), now=0)
    counted.ttl = 4
    assert counted.store.take(key("a"), now=3) is not None and counted.store.take(key("b"), now=5) is None
    counted.ttl = 100
    assert counted.store.take(key("c"), now=7) is not None
    assert counted.store.take(key("d"), now=9) is None  # decode keeps these blocks no longer than it said then


def test_rep_04_the_caller_and_the_model_are_part_of_the_key() -> None:
    counted = Counted()
    counted.store.put(key("chat-1", caller="a"), handle(), now=0)
    assert counted.store.take(key("chat-1", caller="b"), now=1) is None
    assert counted.store.take(key("chat-1", caller="a", model="other"), now=1) is None
    assert counted.store.take(key("chat-1", caller="a"), now=1) is not None


def test_rep_04_a_hundred_thousand_ids_stay_within_the_limit() -> None:
    counted = Counted(limit=500)
    affinity = Affinity(500)
    for number in range(100_000):
        counted.store.put(key(str(number)), handle(), now=0)
        affinity.set(key(str(number)), "decode-0")
    assert len(counted.store) == len(affinity) == 500
    assert counted.store.take(key("99999"), now=1) is not None
    assert counted.fates["evicted"] == 99_500


def test_a_handle_that_can_not_be_used_ends_with_the_fate_given() -> None:
    counted = Counted()
    counted.store.put(key("a"), handle(), now=0)
    assert counted.store.take(key("a"), now=1, unusable=lambda _: "other_build") is None
    assert counted.store.take(key("a"), now=1) is None
    assert counted.fates == {"stored": 1, "other_build": 1, "missed": 1}


def test_expired_handles_leave_without_being_asked_for() -> None:
    counted = Counted(ttl=8)
    for number in range(100):
        counted.store.put(key(str(number)), handle(), now=0)
    counted.store.put(key("later"), handle(), now=9)
    assert len(counted.store) == 1


@given(st.lists(st.tuples(st.sampled_from("pt"), st.sampled_from("abc"), st.integers(0, 5))))
def test_every_handle_has_exactly_one_fate(steps: list[tuple[str, str, int]]) -> None:
    counted, now = Counted(ttl=6, limit=2), 0.0
    for action, name, passed in steps:
        now += passed
        if action == "p":
            counted.store.put(key(name), handle(), now)
        else:
            counted.store.take(key(name), now)
    ended = sum(counted.fates[fate] for fate in ("taken", "expired", "evicted", "replaced"))
    assert counted.fates["stored"] == ended + len(counted.store)


def test_the_least_recently_used_conversation_loses_its_engine_first() -> None:
    affinity = Affinity(2)
    affinity.set(key("a"), "decode-0")
    affinity.set(key("b"), "decode-1")
    affinity.set(key("a"), "decode-0")
    affinity.set(key("c"), "decode-1")
    assert affinity.get(key("b")) is None and affinity.get(key("a")) == "decode-0"
