"""A configuration's faults: all at once, each with field, reason and fix; what passes synthesises."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import moto.ec2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stacks.config import Config, ConfigError, paths
from stacks.deployment import configuration
from stacks.faults import zone_prefix
from stacks.machines import ENGINES
from tests.cloud.synth import PINNED, ROOT, config, context, synthesise

BLOCK = {"capacity.kind": "block", "capacity.id": "cr-0123456789abcdef0", "capacity.ends_at": "2027-03-01T11:30Z"}
IMPORTED = {
    "network.vpc_id": "vpc-0123456789abcdef0",
    "network.cidr": "172.31.0.0/16",
    "network.engine_subnet_ids": ["subnet-0123456789abcdef0"],
    "network.router_subnet_ids": ["subnet-0123456789abcdef1", "subnet-0123456789abcdef2"],
    "network.edge_subnet_ids": ["subnet-0123456789abcdef3", "subnet-0123456789abcdef4"],
}
_WORDS = (
    "", "x", "true", "false", "-1", "0", "1", "2", "8", "64", "9999999", "[]", "null", "use2-az2", "block", "reservation",
    "cr-0123456789abcdef0", "p5en.48xlarge", "trn2.48xlarge", "c7i.2xlarge", "hub", "s3://bucket-a/p", "10.0.0.0/16",
    "2027-03-01T11:30Z", "/a/b", "llm.example.com", "ami-0123456789abcdef0", "é", "{}", '["a"]',
)  # fmt: skip
CERTIFICATE = "arn:aws:acm:us-east-2:123456789012:certificate/0123-abcd"


def faults(changes: Mapping[str, Any], profile: str = "p5en") -> list[tuple[str, str]]:
    """(field, whole line) of each fault."""
    with pytest.raises(ConfigError) as error:
        configuration({**context(), "profile": profile, **PINNED, **changes})
    return [(fault.field, str(fault)) for fault in error.value.faults]


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({**BLOCK, "capacity.placement_group": True}, "capacity.placement_group", "can't be launched into a placement group"),
        ({**BLOCK, "capacity.id": ""}, "capacity.id", "is missing for a block"),
        ({**BLOCK, "capacity.ends_at": ""}, "capacity.ends_at", "could not drain"),
        ({"capacity.ends_at": "2027-03-01T11:30Z"}, "capacity.ends_at", "only a block ends"),
        ({"capacity.id": "cr-0123456789abcdef0"}, "capacity.kind", "is on-demand"),
        (
            {**IMPORTED, "network.engine_subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef5"]},
            "network.engine_subnet_ids",
            "has 2 subnets; EFA stays within one",
        ),
        ({**IMPORTED, "network.edge_subnet_ids": []}, "network.edge_subnet_ids", "has 0 subnets"),
        ({"network.engine_subnet_ids": ["subnet-0123456789abcdef0"]}, "network.engine_subnet_ids", "a new VPC makes its own"),
        ({"engine_zone": "use2-az9", "edge_zones": ["use2-az9", "use2-az1"]}, "engine_zone", "does not offer p5en.48xlarge"),
        ({"engine_zone": "use2-az3"}, "engine_zone", "is not one of edge_zones"),
        ({"edge_zones": ["use2-az1"]}, "edge_zones", "has 1 zones"),
        ({"edge_zones": ["use2-az1", "usw2-az1"]}, "edge_zones", "several regions"),
        ({"tensor_parallel": 16}, "tensor_parallel", "more than the 8 of one p5en.48xlarge"),
        ({"tensor_parallel": 3}, "tensor_parallel", "does not divide 8"),
        ({"tensor_parallel": 4}, "tensor_parallel", "leaves 4 of 8"),
        ({"instance_type": "p5en.24xlarge"}, "instance_type", "no entry in stacks/machines.py"),
        ({"router.instance_type": "p5en.48xlarge"}, "router.instance_type", "no entry in stacks/machines.py"),
        ({"edge.public": True}, "edge.certificate_arn", "travel in clear"),
        ({"edge.public": True}, "edge.allowed_cidrs", "is empty for a public endpoint"),
        ({"edge.domain": "llm.example.com"}, "edge.domain", "without edge.certificate_arn"),
        (
            {"edge.certificate_arn": CERTIFICATE.replace("us-east-2", "eu-west-1")},
            "edge.certificate_arn",
            "a load balancer takes one of its own region",
        ),
        ({"network.cidr": "10.0.0.0/24"}, "network.cidr", "is not a private network of /16 to /20"),
        ({"network.cidr": "10.0.0.1/16"}, "network.cidr", "has host bits set"),
        ({"edge.allowed_cidrs": ["999.0.0.0/8"]}, "edge.allowed_cidrs", "999.0.0.0"),
        ({"model.weights": "s3://bucket-a/x", "model.hub_token_parameter": "/t"}, "model.hub_token_parameter", "come from S3"),
        ({"tunables.handle_ttl": "900"}, "tunables", "is not below decoder_kv_blocks_ttl"),
        ({"tunables.handle_ttl": "soon"}, "tunables", "expected number"),
        ({"tunables.hande_ttl": "9"}, "tunables.hande_ttl", "is not a tunable"),
        ({"tunables.block_size": "48"}, "tunables.block_size", "multiple of 32"),
        ({"decode.count": "many"}, "decode.count", "is 'many'"),
        ({"decode.count": 0}, "decode.count", "greater than or equal to 1"),
        ({"decode.cout": 1}, "decode.cout", "did you mean decode.count?"),
        ({"tensor_paralel": 1}, "tensor_paralel", "did you mean tensor_parallel?"),
        ({"name": "Has Spaces"}, "name", "matches"),
        ({"images.engine": "ami-latest"}, "images.engine", "matches"),
        ({"load_budget_minutes": 500}, "load_budget_minutes", "less than or equal to 60"),
        ({"name": "aws-llm"}, "name", "begins with aws"),
        ({"name": "ssm"}, "name", "begins with ssm"),
        ({"network.vpc_id": "vpc-0123456789abcdef0"}, "network.cidr", "the load balancer lets in that network alone"),
        (
            {"engine_zone": "mec1-az3", "edge_zones": ["mec1-az3", "mec1-az1"], "region": "me-central-1"},
            "images.builder",
            "offers no small machine",
        ),
        ({"region": "us-west-2"}, "region", "has no zone use2-az1"),
        ({"log_retention_days": 8}, "log_retention_days", "is 8"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_fix(changes: dict[str, Any], field: str, says: str) -> None:
    found = [line for name, line in faults(changes) if name == field]
    assert found, faults(changes)
    assert any(says in line for line in found), found
    for line in found:
        assert line.startswith(f"config: {field}: ")
        assert ". hint: " in line


def test_all_faults_are_reported_at_once() -> None:
    fields = [
        name
        for name, _ in faults(
            {
                "decode.count": "x",
                "capacity.kind": "block",
                "capacity.placement_group": True,
                "tensor_parallel": 16,
                "name": "X",
            }
        )
    ]
    assert set(fields) == {
        "decode.count", "name", "capacity.id", "capacity.ends_at", "capacity.placement_group", "tensor_parallel",
    }  # fmt: skip


def test_zone_ids_are_named_after_their_region() -> None:
    folder = Path(moto.ec2.__file__).parent / "resources" / "instance_type_offerings" / "availability-zone-id"
    regions = {}
    for file in folder.glob("*.json*"):
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        # Local zones have a name of their own after the region's.
        regions[file.name.split(".")[0]] = {entry["Location"].split("-")[0] for entry in json.loads(raw)}
    assert len(regions) > 20
    assert {region: {zone_prefix(region)} for region in regions} == regions


def test_trn2_zone_and_ranks() -> None:
    elsewhere = {"region": "us-east-1", "engine_zone": "use1-az6", "edge_zones": ["use1-az6", "use1-az2"]}
    assert faults(elsewhere, "trn2")[0][0] == "engine_zone"
    assert config("trn2").tensor_parallel == ENGINES["trn2.48xlarge"].ranks


def test_unknown_profile_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="known are cpu, p5en, trn2"):
        configuration({**context(), "profile": "p5"})


def app(*flags: str) -> subprocess.CompletedProcess[str]:
    given = context() | dict(flag.split("=", 1) for flag in flags)
    environ = {**os.environ, "CDK_CONTEXT_JSON": json.dumps(given)}
    return subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_faulty_configuration_fails_the_synthesis_with_our_words_only() -> None:
    done = app("profile=cpu", "decode.count=none", "capacity.kind=block")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line.split(": ")[1] for line in lines] == ["decode.count", "capacity.id", "capacity.ends_at"]


def settable() -> st.SearchStrategy[dict[str, Any]]:
    """Changes of settings, right and wrong ones mixed, from what people write."""
    words = st.sampled_from([*_WORDS, CERTIFICATE, "a" * 600])
    return st.dictionaries(st.sampled_from(paths()), words, max_size=4)


# Rightly filled groups of settings, so that most of what is drawn is a deployment that someone could want.
RIGHT: tuple[dict[str, Any], ...] = (
    BLOCK,
    IMPORTED,
    {"capacity.kind": "reservation", "capacity.id": "cr-0123456789abcdef0"},
    {"edge.waf": True},
    {"edge.public": True, "edge.allowed_cidrs": ["203.0.113.0/24"]},
    {"edge.certificate_arn": CERTIFICATE, "edge.domain": "llm.example.com", "edge.hosted_zone_id": "Z0123456789AB"},
    {"edge.access_log_bucket": "my-logs"},
    {"model.weights": "s3://bucket-a/qwen/"},
    {"model.hub_token_parameter": "/secrets/hub"},
    {"router.count": 3},
    {"decode.count": 5},
    {"alarm_email": "ops@example.com"},
    {"images.engine": None},
    {"network.interface_endpoints": False},
    {"tunables.handle_ttl": "60"},
)


@settings(max_examples=300, deadline=None)
@given(changes=settable(), profile=st.sampled_from(["cpu", "p5en", "trn2"]))
def test_any_configuration_is_taken_or_refused_in_our_words(changes: dict[str, Any], profile: str) -> None:
    try:
        got = configuration({**context(), "profile": profile, **changes})
    except ConfigError as error:
        assert error.faults
        assert all(". hint: " in str(fault) for fault in error.faults)
    else:
        assert isinstance(got, Config)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(st.sampled_from(range(len(RIGHT))), max_size=5, unique=True),
    profile=st.sampled_from(["cpu", "p5en", "trn2"]),
)
def test_any_valid_configuration_synthesises(parts: list[int], profile: str) -> None:
    changes: dict[str, Any] = {}
    for part in parts:
        changes |= RIGHT[part]
    try:
        got = configuration({**context(), "profile": profile, **PINNED, **changes})
    except ConfigError:
        return
    assert set(synthesise(got, checked=True)) >= {"network", "images", "parameters", "observability"}
