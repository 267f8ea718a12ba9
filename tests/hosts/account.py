"""The `cpu` profile in the emulator, made by CloudFormation from the synthesised templates, and what it says about each instance."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stacks.config import Config
from tests.aws import Answer, Aws, Call
from tests.cloud.synth import synthesise

BUCKET = "kvr-weights"
# Of those that the emulator knows.
IMAGE = "ami-12c6146b"
_STACKS = ("network", "parameters", "engines", "routing")


@dataclass(frozen=True, slots=True)
class Instance:
    id: str
    role: str
    address: str
    user_data: str


def put_weights(aws: Aws, folder: Path, prefix: str) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": aws.region})
    for path in folder.iterdir():
        s3.upload_file(str(path), BUCKET, f"{prefix}/{path.name}")


def deploy(aws: Aws, config: Config) -> None:
    """Raises what boto3 raises, and `RuntimeError` for a stack that was not made."""
    aws.client("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="99", Type="String", Overwrite=True)
    templates = synthesise(config)
    cloudformation = aws.client("cloudformation")
    for kind in _STACKS:
        name = f"{config.name}-{kind}"
        cloudformation.create_stack(
            StackName=name, TemplateBody=json.dumps(templates[kind]), Capabilities=["CAPABILITY_NAMED_IAM"]
        )
        (made,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
        if made["StackStatus"] != "CREATE_COMPLETE":
            raise RuntimeError(f"{name}: {made['StackStatus']} {made.get('StackStatusReason', '')}")


def instances(aws: Aws, config: Config) -> dict[str, Instance]:
    """By role; each with the user data of the launch template that its group used."""
    found = {}
    for reservation in aws.client("ec2").describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
            if tags.get("kv-roundtrip:deployment") == config.name:
                role = tags["kv-roundtrip:role"]
                data = _user_data(aws, instance["InstanceId"])
                found[role] = Instance(instance["InstanceId"], role, instance["PrivateIpAddress"], data)
    return found


def _user_data(aws: Aws, instance: str) -> str:
    scaling, ec2 = aws.client("autoscaling"), aws.client("ec2")
    (member,) = scaling.describe_auto_scaling_instances(InstanceIds=[instance])["AutoScalingInstances"]
    template: dict[str, Any] = member["LaunchTemplate"]
    versions = ec2.describe_launch_template_versions(
        LaunchTemplateId=template["LaunchTemplateId"], Versions=[template["Version"]]
    )["LaunchTemplateVersions"]
    return base64.b64decode(versions[0]["LaunchTemplateData"]["UserData"]).decode()


class Signals:
    """CloudFormation's SignalResource, which moto lacks: who signalled what."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        """(instance, stack, status)"""

    def __call__(self, call: Call) -> Answer | None:
        if call.action != "SignalResource":
            return None
        form = call.form
        self.seen.append((form["UniqueId"], form["StackName"], form["Status"]))
        space = "http://cloudformation.amazonaws.com/doc/2010-05-15/"
        return Answer(200, f'<SignalResourceResponse xmlns="{space}"/>'.encode())


class Activities:
    """Auto Scaling's DescribeScalingActivities, which moto lacks: launches, the newest first, each by its status."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = statuses
        """"Successful", "Cancelled" and so on."""

    def __call__(self, call: Call) -> Answer | None:
        if call.action != "DescribeScalingActivities":
            return None
        group, now = call.form["AutoScalingGroupName"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = "Instance failed to complete user's Lifecycle Action: it was abandoned: Heartbeat Timeout"
        members = "".join(
            f"<member><ActivityId>a{number}</ActivityId><AutoScalingGroupName>{group}</AutoScalingGroupName>"
            f"<Description>Launching a new EC2 instance: i-{number}</Description><StartTime>{now}</StartTime>"
            f"<StatusCode>{status}</StatusCode><StatusMessage>{reason if status == 'Cancelled' else ''}</StatusMessage>"
            "<Cause>a difference</Cause></member>"
            for number, status in enumerate(self.statuses)
        )
        space, name = "http://autoscaling.amazonaws.com/doc/2011-01-01/", "DescribeScalingActivities"
        text = f'<{name}Response xmlns="{space}"><{name}Result><Activities>{members}</Activities></{name}Result></{name}Response>'
        return Answer(200, text.encode())


def suspended(aws: Aws, group: str) -> list[str]:
    """Processes of a group that are."""
    (found,) = aws.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])[
        "AutoScalingGroups"
    ]
    return [process["ProcessName"] for process in found["SuspendedProcesses"]]
