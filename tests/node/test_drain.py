"""Leaving: the decisions as pure functions, the steps against moto, a metadata service and a real command."""

from datetime import UTC, datetime, timedelta

import pytest

from runtime.drain import SETTLE, Departure, DrainError, Step, Why, deadline, departure, next_step
from tests.aws import Answer
from tests.node.site import TERMINATE, Site, aws, engine_page, site

__all__ = ("aws", "site")

NOW = datetime(2027, 3, 1, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spot", "target", "block_end", "why"),
    [
        (None, None, "none", None),
        (None, "InService", "none", None),
        (None, "Terminated", "none", Why.TERMINATION),
        ('{"action": "terminate", "time": "2027-03-01T10:02:00Z"}', "InService", "none", Why.SPOT),
        ("{}", "Terminated", "none", Why.SPOT),
        ("what?", None, "none", Why.SPOT),
        (None, None, "2027-03-01T10:46Z", None),
        (None, None, "2027-03-01T10:45Z", Why.BLOCK_END),
        (None, None, "2027-03-01T10:01Z", Why.BLOCK_END),
        # past, so a mistake
        (None, None, "2027-03-01T10:00Z", None),
        (None, None, "2026-03-01T10:30Z", None),
    ],
)
def test_when_a_node_leaves(spot: str | None, target: str | None, block_end: str, why: Why | None) -> None:
    leaving = departure(spot, target, block_end, NOW)
    assert (leaving and leaving.why) == why


def test_a_spot_instance_stops_before_it_is_taken() -> None:
    leaving = departure('{"action": "stop", "time": "2027-03-01T10:02:00Z"}', None, "none", NOW)
    assert leaving and deadline(leaving, NOW, 600) == NOW + timedelta(seconds=110)
    assert deadline(Departure(Why.TERMINATION, None), NOW, 600) == NOW + timedelta(seconds=600)


@pytest.mark.parametrize(
    ("seconds", "open_requests", "step"),
    [
        (0, 0, Step.WAIT),  # routers have not read the tag yet
        (30, 1, Step.WAIT),
        (30, None, Step.WAIT),
        (30, 0, Step.STOP),
        (99, 5, Step.WAIT),
        (100, 5, Step.STOP),
        (100, None, Step.STOP),
    ],
)
def test_when_the_service_is_stopped(seconds: float, open_requests: int | None, step: Step) -> None:
    leaving = Departure(Why.TERMINATION, None)
    assert next_step(leaving, NOW, 100, open_requests, NOW + timedelta(seconds=seconds)) is step
    assert next_step(None, NOW, 0, 0, NOW) is Step.STAY


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


LEAVING = Departure(Why.TERMINATION, None)


def test_a_drain_waits_for_open_requests_then_stops_and_lets_auto_scaling_go_on(site: Site) -> None:
    drain = site.drain()
    site.page(engine_page(running=1, waiting=1))
    drain.tick(LEAVING, 600, NOW)
    assert site.state == "draining" and (site.folder / "draining").exists() and drain.draining
    drain.tick(LEAVING, 600, at(40))
    # The hook's own time-out must not run out meanwhile, nor be called about all the time.
    assert len(site.front.of("RecordLifecycleActionHeartbeat")) == 1
    assert not site.stopped.exists() and not site.hooks.completed
    site.page(engine_page())
    drain.tick(LEAVING, 600, at(45))
    assert site.stopped.exists() and site.hooks.completed == [(site.instance, TERMINATE, "CONTINUE")]
    drain.tick(LEAVING, 600, at(50))
    assert len(site.front.of("CompleteLifecycleAction")) == 1 and len(site.front.of("CreateTags")) == 1


def test_a_drain_ends_at_its_time_whatever_is_open(site: Site) -> None:
    drain = site.drain()
    site.page(engine_page(running=9))
    drain.tick(LEAVING, 100, NOW)
    drain.tick(LEAVING, 100, at(101))
    assert site.stopped.exists() and site.hooks.completed


def test_before_a_block_ends_no_hook_is_completed_until_termination_comes(site: Site) -> None:
    drain = site.drain()
    drain.tick(Departure(Why.BLOCK_END, at(2700)), 600, NOW)
    drain.tick(Departure(Why.BLOCK_END, at(2700)), 600, NOW + SETTLE)
    assert site.stopped.exists() and not site.hooks.completed
    drain.tick(LEAVING, 600, at(900))
    assert site.hooks.completed == [(site.instance, TERMINATE, "CONTINUE")]


def test_a_reason_that_goes_away_puts_the_node_back(site: Site) -> None:
    """As when a Capacity Block is extended."""
    drain = site.drain()
    site.page(engine_page(running=1))
    drain.tick(Departure(Why.BLOCK_END, at(2700)), 600, NOW)
    drain.tick(None, 600, at(60))
    assert site.state == "serving" and not (site.folder / "draining").exists() and not drain.draining


def test_a_new_agent_goes_on_with_the_drain_of_the_old(site: Site) -> None:
    site.page(engine_page(running=1))
    site.drain().tick(LEAVING, 100, NOW)
    site.drain().tick(LEAVING, 100, at(101))
    assert site.stopped.exists() and site.hooks.completed


def test_a_tag_that_fails_does_not_keep_the_machine(site: Site) -> None:
    site.front.rules.insert(0, lambda call: Answer(403, b"<Response/>") if call.action == "CreateTags" else None)
    drain = site.drain()
    for second in (0, 30):
        with pytest.raises(Exception, match="CreateTags"):
            drain.tick(LEAVING, 600, at(second))
    assert site.stopped.exists() and site.hooks.completed


def test_a_stop_that_fails_says_why_and_is_tried_again(site: Site) -> None:
    drain = site.drain(["sh", "-c", f"test -e {site.folder}/allowed || {{ echo no bus >&2; exit 4; }}"])
    with pytest.raises(DrainError, match="ended with 4: no bus"):
        drain.tick(LEAVING, 0, NOW)
    (site.folder / "allowed").touch()
    drain.tick(LEAVING, 0, NOW)
    assert site.hooks.completed
