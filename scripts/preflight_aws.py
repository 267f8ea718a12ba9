"""`python -m scripts.preflight_aws --assembly cdk.out`: asks an AWS account whether a deployment can succeed, and its owner whether it
should. All faults at once, each with the fix. Exit codes: see `Exit`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum

import boto3

from scripts import plan as plans
from scripts.account import Level, examine
from scripts.ask import NobodyThere, agreed
from scripts.plan import Plan, PlanError


class Exit(IntEnum):
    GO = 0
    FAULTS = 1
    USAGE = 2
    DECLINED = 3


def summary(plan: Plan) -> str:
    lines = [f"{plan.name} in {plan.region}: {', '.join(plan.stacks)}"]
    for one in plan.machines if plan.is_pinned else ():
        price = f"{one.hourly_usd * one.count:9.2f}" if one.hourly_usd is not None else "        ?"
        lines.append(f"{price} $/h  {one.count} x {one.type}, {one.role}")
    lines.append(f"{plan.other_hourly_usd:9.2f} $/h  network, load balancer, disks, keys")
    if plan.is_pinned:
        lines.append(
            f"{plan.hourly_usd:9.2f} $/h  in all, an estimate" + (" of what has a known price" if plan.unpriced else "")
        )
    if plan.capacity.kind == "block":
        lines.append("the Capacity Block itself is paid ahead: its machines cost nothing more")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    arguments = plans.arguments("scripts.preflight_aws", (__doc__ or "").split(": ", 1)[1], argv)
    try:
        plan = plans.read(arguments.assembly)
        clients = functools.cache(functools.partial(boto3.client, region_name=plan.region))
        findings = examine(plan, clients, datetime.now(UTC))
        for finding in findings:
            print(finding, flush=True)
        faults = sum(finding.level is Level.FAULT for finding in findings)
        if faults:
            print(f"{faults} to mend; nothing was deployed", file=sys.stderr)
            return Exit.FAULTS
        print(summary(plan))
        return Exit.GO if agreed("Deploy?", yes=arguments.yes) else Exit.DECLINED
    except (PlanError, NobodyThere) as error:
        print(f"preflight: {error}", file=sys.stderr)
        return Exit.USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
