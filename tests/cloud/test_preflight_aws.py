"""The pre-flight against the emulator: an account where all is well, and one where nothing is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from scripts.account import Finding, Level, counts_against, examine, guarded, reservation_faults
from scripts.plan import Capacity, Machines, Plan, PlanError, read
from tests.emulator.process import REGION, Running, running

_NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
_P = "L-417A185B"


@pytest.fixture(scope="module")
def aws() -> Iterator[Running]:
    with running() as emulator:
        yield emulator


@pytest.fixture(scope="module")
def images(aws: Running) -> dict[str, str]:
    """Two, with the tags that our pipelines give."""
    ec2 = aws.client("ec2")
    tags = [{"Key": "project", "Value": "kv-roundtrip"}, {"Key": "kv-roundtrip:source", "Value": "0123456789"}]
    machine = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, InstanceType="t3.micro")
    number = machine["Instances"][0]["InstanceId"]
    made = {}
    for kind in ("engine", "router"):
        made[kind] = ec2.create_image(InstanceId=number, Name=kind)["ImageId"]
        ec2.create_tags(Resources=[made[kind]], Tags=tags)
    ec2.terminate_instances(InstanceIds=[number])
    return made


def _plan(images: dict[str, str], **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "name": "kv-roundtrip",
        "region": REGION,
        "zone_id": "use2-az1",
        "machines": (
            Machines("prefill", "p5en.48xlarge", 1, 192, _P, 63.3),
            Machines("decode", "p5en.48xlarge", 1, 192, _P, 63.3),
            Machines("router", "c7i.large", 2, 2, "L-1216C47A", 0.089),
        ),
        "other_hourly_usd": 0.25,
        "images": images,
        "capacity": Capacity("on-demand", "", ""),
        "stacks": ("kv-roundtrip-network", "kv-roundtrip-engines"),
        "bootstrap_version": 6,
    }
    return Plan(**{**given, **changes})


def _grant(aws: Running, vcpus: float) -> None:
    quotas = aws.client("service-quotas")
    quotas.request_service_quota_increase(ServiceCode="ec2", QuotaCode=_P, DesiredValue=vcpus)


def _bootstrap(aws: Running, version: str) -> None:
    name = "/cdk-bootstrap/hnb659fds/version"
    aws.client("ssm").put_parameter(Name=name, Value=version, Type="String", Overwrite=True)


def _faults(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: str(finding) for finding in findings if finding.level is Level.FAULT}


def test_a_good_account_has_no_fault_and_one_warning(aws: Running, images: dict[str, str]) -> None:
    _grant(aws, 384)
    _bootstrap(aws, "32")
    findings = examine(_plan(images), aws.client, _NOW)
    assert _faults(findings) == {}
    assert [finding.check for finding in findings if finding.level is Level.WARNING] == ["capacity"]


def test_all_faults_at_once_each_with_its_fix(aws: Running) -> None:
    _grant(aws, 192)
    _bootstrap(aws, "5")
    plan = _plan(
        {"engine": "ami-0123456789abcdef0", "router": "ami-12c6146b"},
        machines=(
            Machines("prefill", "trn1.32xlarge", 1, 128, "L-2C3B7624", None),
            Machines("decode", "p5en.48xlarge", 2, 192, _P, 63.3),
        ),
        zone_id="use2-az1",
        capacity=Capacity("reservation", "cr-0123456789abcdef0", ""),
    )
    findings = examine(plan, aws.client, _NOW)
    faults = [finding for finding in findings if finding.level is Level.FAULT]
    words = "\n".join(map(str, faults))
    assert "0 vCPUs, 128 needed" in words and "192 vCPUs, 384 needed" in words
    assert f"--quota-code {_P} --desired-value 384" in words
    assert "engine image ami-0123456789abcdef0 is not in us-east-2" in words
    assert "router image ami-12c6146b has no tag project=kv-roundtrip" in words
    assert "cr-0123456789abcdef0 is not there" in words
    assert "version 5, 6 is needed" in words and "cdk.sh bootstrap aws://123456789012/us-east-2" in words
    assert all(finding.hint for finding in faults)


def test_before_the_first_images_a_missing_quota_is_a_warning(aws: Running) -> None:
    _grant(aws, 0)
    _bootstrap(aws, "32")
    findings = examine(_plan({"engine": "", "router": ""}), aws.client, _NOW)
    assert _faults(findings) == {}
    assert {"quota", "capacity", "images"} == {one.check for one in findings if one.level is Level.WARNING}


def test_a_zone_that_is_not_there_or_does_not_offer_the_type(aws: Running, images: dict[str, str]) -> None:
    _grant(aws, 384)
    assert "use2-az1, use2-az2" in _faults(examine(_plan(images, zone_id="use2-az9"), aws.client, _NOW))["zone"]
    machines = (Machines("prefill", "p4de.24xlarge", 1, 96, _P, 40.0), *_plan(images).machines[1:])
    fault = _faults(examine(_plan(images, machines=machines), aws.client, _NOW))["zone"]
    assert "does not offer p4de.24xlarge" in fault and "hint" in fault


def test_what_others_run_counts_and_our_own_does_not(aws: Running, images: dict[str, str]) -> None:
    _grant(aws, 384)
    ec2 = aws.client("ec2")
    number = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, InstanceType="p5en.48xlarge")[
        "Instances"
    ][0]["InstanceId"]
    try:
        assert "used by others" in _faults(examine(_plan(images), aws.client, _NOW))["quota"]
        ours = [{"Key": "kv-roundtrip:deployment", "Value": "kv-roundtrip"}]
        ec2.create_tags(Resources=[number], Tags=ours)
        assert "quota" not in _faults(examine(_plan(images), aws.client, _NOW))
    finally:
        ec2.terminate_instances(InstanceIds=[number])


def _reserve(aws: Running, count: int, **more: Any) -> str:
    answer = aws.client("ec2").create_capacity_reservation(
        InstanceType="p5en.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-2a",
        InstanceCount=count,
        **more,
    )
    number: str = answer["CapacityReservation"]["CapacityReservationId"]
    return number


def test_a_reservation_that_holds_the_engines(aws: Running, images: dict[str, str]) -> None:
    zones = aws.client("ec2").describe_availability_zones(ZoneNames=["us-east-2a"])["AvailabilityZones"]
    zone = zones[0]["ZoneId"]
    good = _reserve(aws, 2, InstanceMatchCriteria="targeted")
    plan = _plan(images, zone_id=zone, capacity=Capacity("reservation", good, ""))
    assert "capacity" not in _faults(examine(plan, aws.client, _NOW))
    small = _reserve(aws, 1, InstanceMatchCriteria="targeted")
    plan = _plan(images, zone_id=zone, capacity=Capacity("reservation", small, ""))
    assert "holds 1 machines, 2 are wanted" in _faults(examine(plan, aws.client, _NOW))["capacity"]


def test_a_capacity_block_takes_no_quota(aws: Running, images: dict[str, str]) -> None:
    _grant(aws, 0)
    zones = aws.client("ec2").describe_availability_zones(ZoneNames=["us-east-2a"])["AvailabilityZones"]
    block = _reserve(aws, 2, EndDate=_NOW + timedelta(days=2))
    capacity = Capacity("block", block, "2026-12-03T12:00Z")
    findings = examine(_plan(images, zone_id=zones[0]["ZoneId"], capacity=capacity), aws.client, _NOW)
    assert not {"quota", "capacity"} & _faults(findings).keys()


_BLOCK = {
    "State": "active",
    "ReservationType": "capacity-block",
    "AvailabilityZoneId": "use2-az1",
    "InstanceType": "p5en.48xlarge",
    "TotalInstanceCount": 2,
    "AvailableInstanceCount": 2,
    "EndDate": _NOW + timedelta(days=2),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"State": "scheduled", "StartDate": _NOW + timedelta(hours=3)}, "deploy after 2026-12-01T15:00Z"),
        ({"State": "expired"}, "is expired"),
        ({"AvailabilityZoneId": "use2-az2"}, "engine_zone: use2-az2"),
        ({"InstanceType": "p5.48xlarge"}, "holds p5.48xlarge, the engines are p5en.48xlarge"),
        ({"EndDate": _NOW + timedelta(minutes=30)}, "would drain at once"),
        ({"EndDate": _NOW + timedelta(days=3)}, "capacity.ends_at: 2026-12-04T12:00Z"),
        ({"ReservationType": "default"}, "capacity.kind: reservation"),
    ],
)
def test_a_block_that_does_not_fit(change: dict[str, Any], words: str) -> None:
    plan = _plan({}, capacity=Capacity("block", "cr-1", "2026-12-03T12:00Z"))
    engines = [one for one in plan.machines if one.is_engine]
    assert not list(reservation_faults(plan, engines, _BLOCK, _NOW))
    found = list(reservation_faults(plan, engines, {**_BLOCK, **change}, _NOW))
    assert words in "\n".join(map(str, found)) and all(fault.hint for fault in found)


def test_what_may_not_be_asked_is_a_warning_by_name() -> None:
    def denied() -> Iterator[Finding]:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetServiceQuota")
        yield

    (finding,) = guarded("quota", denied)
    assert finding.level is Level.WARNING and "GetServiceQuota is denied" in finding.text


@pytest.mark.parametrize(
    ("type_", "code"),
    [("p5en.48xlarge", _P), ("trn2.48xlarge", "L-2C3B7624"), ("g6e.xlarge", "L-DB2E81BA"), ("t3.small", "L-1216C47A"),
     ("c7i.large", "L-1216C47A"), ("inf2.xlarge", ""), ("u-6tb1.metal", "")],
)  # fmt: skip
def test_quota_of_a_type(type_: str, code: str) -> None:
    assert counts_against(type_) == code


def _assembly(folder: Path, images: dict[str, str]) -> None:
    plan = _plan(images)
    given = {
        "name": plan.name,
        "region": plan.region,
        "zone_id": plan.zone_id,
        "machines": [
            {"role": one.role, "type": one.type, "count": one.count, "vcpus": one.vcpus, "quota_code": one.quota_code,
             "hourly_usd": one.hourly_usd}
            for one in plan.machines
        ],
        "other_hourly_usd": plan.other_hourly_usd,
        "images": images,
        "capacity": {"kind": "on-demand", "id": "", "ends_at": ""},
        "stacks": list(plan.stacks),
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(given))
    stack = {"properties": {"requiresBootstrapStackVersion": 6}}
    (folder / "manifest.json").write_text(json.dumps({"artifacts": {"stack": stack}}))


def _main(aws: Running, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ENDPOINT_URL": aws.endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    argv = [sys.executable, "-m", "scripts.preflight_aws", "--assembly", str(folder), *words]
    return subprocess.run(
        argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


def test_nobody_at_the_terminal_and_no_yes_is_refused(aws: Running, images: dict[str, str], tmp_path: Path) -> None:
    _grant(aws, 384)
    _bootstrap(aws, "32")
    _assembly(tmp_path, images)
    refused = _main(aws, tmp_path)
    assert refused.returncode == 2 and "hint: --yes" in refused.stderr
    agreed = _main(aws, tmp_path, "--yes")
    assert agreed.returncode == 0, agreed.stdout + agreed.stderr
    assert "127.03 $/h  in all" in agreed.stdout
    _grant(aws, 0)
    faulty = _main(aws, tmp_path, "--yes")
    assert faulty.returncode == 1 and "nothing was deployed" in faulty.stderr


def test_a_folder_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"plan\.json: No such file.*hint"):
        read(tmp_path)
