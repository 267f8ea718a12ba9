from connector.used import UsedHandles


def test_rep_02_a_handle_is_new_once() -> None:
    used = UsedHandles()
    assert used.add(("e1", "r1"))
    assert not used.add(("e1", "r1"))
    assert used.add(("e2", "r1")) and used.add(("e1", "r2"))


def test_memory_is_bounded_oldest_first() -> None:
    used = UsedHandles(remembered=2)
    for request in ("a", "b", "c"):
        used.add(("e", request))
    assert not used.add(("e", "c"))
    assert used.add(("e", "a"))
