"""Which launches count as failed, and when a group stops launching."""

from datetime import UTC, datetime, timedelta

import pytest

from runtime.launches import failures

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
ABANDONED = "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token t was abandoned: Heartbeat Timeout"


def launch(
    status: str, message: str = "", hours: float = 0, what: str = "Launching a new EC2 instance: i-1"
) -> dict[str, object]:
    return {
        "StartTime": NOW - timedelta(hours=hours),
        "Description": what,
        "StatusCode": status,
        "StatusMessage": message,
    }


FAILED = launch("Cancelled", ABANDONED)
GOOD = launch("Successful")


@pytest.mark.parametrize(
    ("activities", "count"),
    [
        ([], 0),
        ([FAILED, FAILED], 2),
        ([FAILED, GOOD, FAILED], 1),
        ([GOOD, FAILED, FAILED], 0),
        # The node that asks, and others that boot.
        ([launch("MidLifecycleAction"), launch("InProgress"), FAILED], 1),
        # What ended a node says nothing about launches, and one without a machine costs nothing.
        ([launch("Successful", what="Terminating EC2 instance: i-1"), FAILED], 1),
        ([launch("Failed", "We currently do not have sufficient p5en.48xlarge capacity"), FAILED], 1),
        ([launch("Cancelled", "the desired capacity was lowered"), FAILED], 1),
        # The reason stands in the description too, in some answers only there.
        ([launch("Cancelled", what=f"Launching a new EC2 instance: i-1.  Status Reason: {ABANDONED}")], 1),
        ([FAILED, launch("Cancelled", ABANDONED, hours=30)], 1),
    ],
)  # fmt: skip
def test_failed_launches_in_a_row(activities: list[dict[str, object]], count: int) -> None:
    assert failures(activities, NOW - timedelta(days=1)) == count
