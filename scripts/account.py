"""Checks of an AWS account against a plan. Each asks AWS and gives findings; what may not be asked is a finding too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from scripts.plan import Machines, Plan

Client = Any
Clients = Callable[[str], Client]

_BOOTSTRAP = "/cdk-bootstrap/hnb659fds/version"
_LEAST_TIME_OF_BLOCK = timedelta(hours=1)
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_UNUSABLE = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED")
_STANDARD = "L-1216C47A"
# Family of a type -> the vCPU quota it counts against. https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
_FAMILIES = (
    (re.compile(r"p[0-9]"), "L-417A185B"),
    (re.compile(r"trn[0-9]"), "L-2C3B7624"),
    (re.compile(r"(g|gr|vt)[0-9]"), "L-DB2E81BA"),
    (re.compile(r"(a|c|d|h|i|im|is|m|r|t|z)[0-9]"), _STANDARD),
)


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    check: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"\n         hint: {self.hint}" if self.hint else ""
        return f"{self.level:<8} {self.check:<12} {self.text}{hint}"


Findings = Iterator[Finding]


def examine(plan: Plan, clients: Clients, now: datetime) -> list[Finding]:
    """Every check; without credentials only the first, for the others could say nothing."""
    found = list(guarded("credentials", lambda: credentials(plan, clients)))
    if any(finding.level is Level.FAULT for finding in found):
        return found
    for name, check in CHECKS.items():
        found += guarded(name, lambda check=check: check(plan, clients, now))  # type: ignore[misc]
    if not plan.is_pinned:
        # No engine starts yet; images can be built while a quota is asked for or a block has not begun.
        found = [_later(finding) if finding.check in ("quota", "capacity") else finding for finding in found]
    return found


def _later(finding: Finding) -> Finding:
    return replace(finding, level=Level.WARNING) if finding.level is Level.FAULT else finding


def guarded(check: str, run: Callable[[], Findings]) -> Findings:
    try:
        yield from run()
    except ClientError as error:
        code, text = error.response["Error"]["Code"], error.response["Error"]["Message"]
        if code in _DENIED:
            hint = f"allow {error.operation_name}, or look yourself"
            yield Finding(Level.WARNING, check, f"could not be checked: {error.operation_name} is denied", hint)
        elif check == "credentials":
            hint = "set AWS_PROFILE, or run `aws sso login` or `aws configure`"
            yield Finding(Level.FAULT, check, f"AWS refuses them: {code}: {text}", hint)
        else:
            yield Finding(Level.WARNING, check, f"could not be checked: {error.operation_name}: {code}: {text}")
    except BotoCoreError as error:
        hint = "set AWS_PROFILE, or run `aws sso login` or `aws configure`; is there a network?"
        level = Level.FAULT if check == "credentials" else Level.WARNING
        yield Finding(level, check, f"could not be checked: {error}", hint)


def credentials(plan: Plan, clients: Clients) -> Findings:
    answer = clients("sts").get_caller_identity()
    yield Finding(Level.OK, "credentials", f"account {answer['Account']} as {answer['Arn']}")


def region(plan: Plan, clients: Clients, now: datetime) -> Findings:
    answer = clients("ec2").describe_regions(RegionNames=[plan.region], AllRegions=True)
    status = answer["Regions"][0].get("OptInStatus", "opt-in-not-required")
    if status == "not-opted-in":
        yield Finding(
            Level.FAULT, "region", f"{plan.region} is not enabled in this account", "enable it in the account settings"
        )
    else:
        yield Finding(Level.OK, "region", plan.region)


def zone(plan: Plan, clients: Clients, now: datetime) -> Findings:
    """The zone exists, is open, and offers what goes into it; names of zones differ between accounts, ids do not."""
    ec2 = clients("ec2")
    zones = {one["ZoneId"]: one for one in ec2.describe_availability_zones()["AvailabilityZones"]}
    here = zones.get(plan.zone_id)
    if here is None:
        known = ", ".join(sorted(zones))
        yield Finding(Level.FAULT, "zone", f"{plan.region} has no zone {plan.zone_id}", f"engine_zone: one of {known}")
        return
    if here["State"] != "available":
        yield Finding(Level.FAULT, "zone", f"{plan.zone_id} is {here['State']}", "choose another engine_zone")
    for type_ in sorted({one.type for one in plan.machines}):
        offered = _offered(ec2, type_)
        is_engine = any(one.is_engine and one.type == type_ for one in plan.machines)
        if is_engine and plan.zone_id not in offered:
            where = ", ".join(sorted(offered)) or "no zone of this region"
            yield Finding(Level.FAULT, "zone", f"{plan.zone_id} does not offer {type_}", f"it is offered in: {where}")
        elif not offered:
            yield Finding(Level.FAULT, "zone", f"{plan.region} does not offer {type_}", "choose another instance_type")
        else:
            yield Finding(Level.OK, "zone", f"{type_} is offered in {plan.zone_id if is_engine else plan.region}")


def _offered(ec2: Client, type_: str) -> set[str]:
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": [type_]}]
    )
    return {one["Location"] for page in pages for one in page["InstanceTypeOfferings"]}


def counts_against(type_: str) -> str:
    """The vCPU quota of an instance type, "" for those with one that no machine of ours counts against."""
    return next((code for family, code in _FAMILIES if family.match(type_)), "")


def quotas(plan: Plan, clients: Clients, now: datetime) -> Findings:
    """What the plan takes, and what others in the account run, against each vCPU quota."""
    counted = [one for one in plan.machines if not (one.is_engine and plan.capacity.kind == "block")]
    used = _used(clients("ec2"), plan.name)
    for code in sorted({one.quota_code for one in counted}):
        takes = sum(one.count * one.vcpus for one in counted if one.quota_code == code)
        quota = clients("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
        limit, name, others = int(quota["Value"]), quota["QuotaName"], used.get(code, 0)
        words = f"{name} ({code}): {limit} vCPUs, {takes} needed, {others} used by others"
        if takes + others > limit:
            hint = (
                f"aws service-quotas request-service-quota-increase --region {plan.region} --service-code ec2 "
                f"--quota-code {code} --desired-value {takes + others}"
            )
            yield Finding(Level.FAULT, "quota", words, hint)
        else:
            yield Finding(Level.OK, "quota", words)
    if len(counted) < len(plan.machines):
        yield Finding(Level.OK, "quota", "engines in a Capacity Block count against none")


def _used(ec2: Client, name: str) -> dict[str, int]:
    """Quota -> vCPUs of running On-Demand machines that are not this deployment's."""
    running: Counter[str] = Counter()
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for page in ec2.get_paginator("describe_instances").paginate(Filters=states):
        for instance in (one for reservation in page["Reservations"] for one in reservation["Instances"]):
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
            # Spot machines and those of a Capacity Block have quotas of their own.
            if tags.get("kv-roundtrip:deployment") != name and not instance.get("InstanceLifecycle"):
                running[instance["InstanceType"]] += 1
    used: Counter[str] = Counter()
    if running:
        for page in ec2.get_paginator("describe_instance_types").paginate(InstanceTypes=sorted(running)):
            for one in page["InstanceTypes"]:
                type_ = one["InstanceType"]
                used[counts_against(type_)] += running[type_] * one["VCpuInfo"]["DefaultVCpus"]
    return dict(used)


def capacity(plan: Plan, clients: Clients, now: datetime) -> Findings:
    engines = [one for one in plan.machines if one.is_engine]
    if plan.capacity.kind == "on-demand":
        scarce = sorted({one.type for one in engines if one.quota_code != _STANDARD})
        if scarce:
            text = f"nothing is reserved: {', '.join(scarce)} may not be there when its group asks"
            yield Finding(Level.WARNING, "capacity", text, "a reservation or a Capacity Block: docs/deploy.md")
        return
    found = _reservation(clients("ec2"), plan.capacity.id)
    if found is None:
        yield Finding(Level.FAULT, "capacity", f"{plan.capacity.id} is not there", "capacity.id: see the EC2 console")
        return
    faults = list(reservation_faults(plan, engines, found, now))
    yield from faults
    if not faults:
        yield Finding(
            Level.OK,
            "capacity",
            f"{plan.capacity.id}: {found['AvailableInstanceCount']} of {found['TotalInstanceCount']} free",
        )


def _reservation(ec2: Client, number: str) -> Mapping[str, Any] | None:
    try:
        found: list[Mapping[str, Any]] = ec2.describe_capacity_reservations(CapacityReservationIds=[number])[
            "CapacityReservations"
        ]
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("InvalidCapacityReservationId"):
            raise
        return None
    return found[0] if found else None


def reservation_faults(plan: Plan, engines: list[Machines], found: Mapping[str, Any], now: datetime) -> Findings:
    """All that keeps `found`, as EC2 describes it, from holding the engines."""

    def fault(text: str, hint: str) -> Finding:
        return Finding(Level.FAULT, "capacity", f"{plan.capacity.id} {text}", hint)

    kind = "block" if found.get("ReservationType") == "capacity-block" else "reservation"
    if kind != plan.capacity.kind:
        yield fault(f"is a {kind}, configured is a {plan.capacity.kind}", f"capacity.kind: {kind}")
    if found["State"] != "active":
        start = found.get("StartDate")
        yield fault(f"is {found['State']}", f"deploy after {start:%Y-%m-%dT%H:%MZ}" if start else "choose another one")
    if found["AvailabilityZoneId"] != plan.zone_id:
        here = found["AvailabilityZoneId"]
        yield fault(f"is in {here}, the engines go to {plan.zone_id}", f"engine_zone: {here}")
    types = sorted({one.type for one in engines})
    if types != [found["InstanceType"]]:
        yield fault(f"holds {found['InstanceType']}, the engines are {', '.join(types)}", "instance_type: the same")
    wanted, total = sum(one.count for one in engines), found["TotalInstanceCount"]
    if wanted > total:
        yield fault(
            f"holds {total} machines, {wanted} are wanted", "lower prefill.count or decode.count, or reserve more"
        )
    if kind == "block":
        yield from _block_faults(plan, found["EndDate"], now, fault)
    elif found.get("InstanceMatchCriteria") != "targeted":
        yield fault("is open: any machine of the type in the account takes from it", "make a targeted one")


def _block_faults(plan: Plan, ends: datetime, now: datetime, fault: Callable[[str, str], Finding]) -> Findings:
    text = f"{ends.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
    if ends - now < _LEAST_TIME_OF_BLOCK:
        yield fault(f"ends at {text}; engines would drain at once", "take another block")
    if plan.capacity.ends_at != text:
        yield fault(f"ends at {text}, configured is {plan.capacity.ends_at or 'no end'}", f"capacity.ends_at: {text}")


def images(plan: Plan, clients: Clients, now: datetime) -> Findings:
    if not plan.is_pinned:
        text = "none pinned: network, images, parameters and alarms only"
        yield Finding(Level.WARNING, "images", text, "run the pipelines, then scripts/pin_images.py")
        return
    wanted = [{"Name": "image-id", "Values": sorted(set(plan.images.values()))}]
    found = {one["ImageId"]: one for one in clients("ec2").describe_images(Filters=wanted)["Images"]}
    sources = set()
    for kind, number in plan.images.items():
        image = found.get(number)
        tags = {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])} if image else {}
        if image is None:
            text = f"{kind} image {number} is not in {plan.region}, or not this account's to use"
            yield Finding(Level.FAULT, "images", text, "scripts/pin_images.py takes what the pipelines made")
        elif image["State"] != "available":
            yield Finding(
                Level.FAULT, "images", f"{kind} image {number} is {image['State']}", "wait, or pin another one"
            )
        elif tags.get("project") != "kv-roundtrip":
            text = f"{kind} image {number} has no tag project=kv-roundtrip: our pipelines did not make it"
            yield Finding(Level.FAULT, "images", text, "scripts/pin_images.py takes what the pipelines made")
        else:
            sources.add(tags.get("kv-roundtrip:source", ""))
            made = image.get("CreationDate", "")[:16]
            yield Finding(
                Level.OK, "images", f"{kind} {number} of {made}, source {tags.get('kv-roundtrip:source', '?')[:8]}"
            )
    if len(sources) > 1:
        text = "engine and router image are of two versions of the source"
        yield Finding(Level.WARNING, "images", text, "run both pipelines, then scripts/pin_images.py")


def bootstrap(plan: Plan, clients: Clients, now: datetime) -> Findings:
    account = clients("sts").get_caller_identity()["Account"]
    hint = f"scripts/cdk.sh bootstrap aws://{account}/{plan.region}"
    try:
        version = int(clients("ssm").get_parameter(Name=_BOOTSTRAP)["Parameter"]["Value"])
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        yield Finding(Level.FAULT, "bootstrap", f"{plan.region} was not bootstrapped for the CDK", hint)
        return
    if version < plan.bootstrap_version:
        text = f"the bootstrap stack has version {version}, {plan.bootstrap_version} is needed"
        yield Finding(Level.FAULT, "bootstrap", text, hint)
    else:
        yield Finding(Level.OK, "bootstrap", f"version {version}, {plan.bootstrap_version} is needed")


def stacks(plan: Plan, clients: Clients, now: datetime) -> Findings:
    """None of ours is in a state that CloudFormation updates no more, or in the middle of something."""
    pages = clients("cloudformation").get_paginator("describe_stacks").paginate()
    states = {one["StackName"]: one["StackStatus"] for page in pages for one in page["Stacks"]}
    for name in plan.stacks:
        state = states.get(name, "")
        if state in _UNUSABLE:
            hint = f"aws cloudformation delete-stack --region {plan.region} --stack-name {name}"
            yield Finding(Level.FAULT, "stacks", f"{name} is {state}", hint)
        elif state.endswith("IN_PROGRESS"):
            yield Finding(Level.FAULT, "stacks", f"{name} is {state}", "wait until that is done")
    there = [name for name in plan.stacks if name in states]
    yield Finding(Level.OK, "stacks", f"{len(there)} of {len(plan.stacks)} are there")


Check = Callable[[Plan, Clients, datetime], Findings]
CHECKS: Mapping[str, Check] = {
    "region": region,
    "zone": zone,
    "quota": quotas,
    "capacity": capacity,
    "images": images,
    "bootstrap": bootstrap,
    "stacks": stacks,
}
