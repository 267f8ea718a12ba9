"""Launches of an Auto Scaling group that fail one after the other: it would go on for ever, and each costs a node's time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

logger = logging.getLogger(__name__)

MOST = 3
"""Failed launches in a row, after which a group launches no more."""
WINDOW = timedelta(days=1)
_RECORDS = 50


def failures(activities: Iterable[Mapping[str, Any]], since: datetime) -> int:
    """How many of the newest launches in a row were given up, by the node or by its hook's time-out; newest first.

    One that is still under way says nothing, nor does one that got no machine: that costs nothing.
    """
    count = 0
    for activity in activities:
        if activity["StartTime"] < since or (activity["StatusCode"] == "Successful" and _is_launch(activity)):
            break
        if _is_launch(activity) and activity["StatusCode"] in ("Cancelled", "Failed"):
            # "Instance failed to complete user's Lifecycle Action: ... was abandoned: ..."
            count += "Lifecycle Action" in f"{activity.get('StatusMessage', '')} {activity['Description']}"
    return count


def _is_launch(activity: Mapping[str, Any]) -> bool:
    return str(activity["Description"]).startswith("Launching a new EC2 instance")


def limit(autoscaling: Any, group: str, region: str) -> bool:
    """Called before the node at hand is given up: with too many before it, `group` launches no more. True: it was told so.

    Needs autoscaling:DescribeScalingActivities (on *) and autoscaling:SuspendProcesses (on the group). Raises what boto3 raises.
    """
    found = autoscaling.describe_scaling_activities(AutoScalingGroupName=group, MaxRecords=_RECORDS)["Activities"]
    before = failures(found, datetime.now(UTC) - WINDOW)
    if before + 1 < MOST:
        return False
    autoscaling.suspend_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])
    logger.error(
        "%d launches of %s in a row have failed: it launches no more. hint: mend what the nodes' logs say, then "
        "`aws autoscaling resume-processes --auto-scaling-group-name %s --scaling-processes Launch --region %s`",
        before + 1, group, group, region,
    )  # fmt: skip
    return True
