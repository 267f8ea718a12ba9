"""`python -m scripts.teardown --assembly cdk.out`: what a destroy ends and what it leaves, then y/N. Exit codes: see `Exit`."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from scripts import plan as plans
from scripts.ask import NobodyThere, agreed
from scripts.plan import Plan, PlanError

Clients = Callable[[str], Any]


class Exit(IntEnum):
    GO = 0
    FAILED = 1
    USAGE = 2
    DECLINED = 3
    NOTHING = 4


def standing(plan: Plan, clients: Clients) -> list[str]:
    """Those of the plan's stacks that are there."""
    pages = clients("cloudformation").get_paginator("describe_stacks").paginate()
    there = {one["StackName"] for page in pages for one in page["Stacks"]}
    return [name for name in plan.stacks if name in there]


def going(stacks: Sequence[str], clients: Clients) -> Iterator[str]:
    """A line a stack, with what it holds."""
    for stack in stacks:
        pages = clients("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
        types = Counter(
            one["ResourceType"].rpartition("::")[2]
            for page in pages
            for one in page["StackResourceSummaries"]
            if one.get("ResourceType")  # an emulator lists what it skipped without one
        )
        yield f"{stack}: " + ", ".join(f"{count} {type_}" for type_, count in sorted(types.items()))


def staying(plan: Plan, stacks: Sequence[str], clients: Clients) -> Iterator[str]:
    """What costs little or is worth keeping: resources that are to outlive their stack, and images with their snapshots."""
    for stack in stacks:
        body = clients("cloudformation").get_template(StackName=stack)["TemplateBody"]
        template = body if isinstance(body, dict) else json.loads(body)
        for name, resource in template["Resources"].items():
            if resource.get("DeletionPolicy", "Delete") != "Delete":
                yield f"{resource['Type']} {name} of {stack}"
    tag = [{"Name": "tag:project", "Values": ["kv-roundtrip"]}]
    for image in clients("ec2").describe_images(Owners=["self"], Filters=tag)["Images"]:
        disks = [
            disk["Ebs"]["SnapshotId"]
            for disk in image.get("BlockDeviceMappings", [])
            if disk.get("Ebs", {}).get("SnapshotId")
        ]
        yield f"image {image['ImageId']} of {image.get('CreationDate', '')[:10]}, snapshots {', '.join(disks) or 'none'}"
    names = [f"/{plan.name}-images/{kind}" for kind in ("engine", "router")]
    for parameter in clients("ssm").get_parameters(Names=names)["Parameters"]:
        yield f"parameter {parameter['Name']}, which the pipelines wrote"
    yield "CDKToolkit, the CDK's own stack of this account and region"


def main(argv: Sequence[str]) -> int:
    arguments = plans.arguments("scripts.teardown", (__doc__ or "").split(": ", 1)[1], argv)
    try:
        plan = plans.read(arguments.assembly)
        clients = functools.cache(functools.partial(boto3.client, region_name=plan.region))
        account = clients("sts").get_caller_identity()["Account"]
        stacks = standing(plan, clients)
        if not stacks:
            print(f"nothing of {plan.name} is in {plan.region} of account {account}")
            return Exit.NOTHING
        print(f"goes, in {plan.region} of account {account}:")
        print("\n".join(f"  {line}" for line in going(stacks, clients)))
        print("stays:")
        print("\n".join(f"  {line}" for line in staying(plan, stacks, clients)))
        print("open streams end; nodes that drain may take over an hour to go")
        return Exit.GO if agreed(f"Destroy {plan.name}?", yes=arguments.yes) else Exit.DECLINED
    except (PlanError, NobodyThere) as error:
        print(f"teardown: {error}", file=sys.stderr)
        return Exit.USAGE
    except (ClientError, BotoCoreError) as error:
        print(f"teardown: {error}. hint: set AWS_PROFILE, or run `aws configure`", file=sys.stderr)
        return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
