"""A node's role allows what its programs call, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from tests.cloud.synth import ROOT, config, of_type, synthesise

# Not called by our code: the SSM agent's sessions, and what the CloudWatch agent does with a group that exists.
AGENTS = {
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "logs:CreateLogStream",
    "logs:DescribeLogStreams",
    "logs:PutLogEvents",
}
SERVICES = ("autoscaling", "cloudformation", "cloudwatch", "ec2", "s3", "ssm")
# Calls whose right has another name, and boto3's own download.
RIGHTS = {"s3:ListObjectsV2": "s3:ListBucket", "s3:DownloadFileobj": "s3:GetObject"}
WEIGHTS = {"model__weights": "s3://weights/qwen"}
TOKEN = {"model__hub_token_parameter": "/secrets/hub"}


@cache
def operations() -> dict[str, str]:
    """boto3's name of a call -> service:Action."""
    session = botocore.session.get_session()
    found = {"download_fileobj": "s3:DownloadFileobj"}
    for service in SERVICES:
        model = session.get_service_model(service)
        found |= {xform_name(name): f"{service}:{name}" for name in model.operation_names}
    return found


def names(file: Path) -> Iterator[str]:
    """What may be a call's name: attributes, and what is asked of get_paginator."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_paginator":
            yield from (str(given.value) for given in node.args if isinstance(given, ast.Constant))


def called(*files: Path) -> set[str]:
    found = {operations()[name] for file in files for name in names(file) if name in operations()}
    return {RIGHTS.get(action, action) for action in found}


def allowed(template: dict[str, Any], role: str) -> set[str]:
    actions: set[str] = set()
    for name, policy in of_type(template, "IAM::Policy").items():
        if role in name:
            for statement in policy["PolicyDocument"]["Statement"]:
                action = statement["Action"]
                actions |= {action} if isinstance(action, str) else set(action)
    return actions


def test_what_the_code_calls_is_found() -> None:
    calls = called(*(ROOT / "runtime").glob("*.py"))
    assert {
        "autoscaling:CompleteLifecycleAction",
        "ec2:CreateTags",
        "s3:ListBucket",
        "ssm:GetParametersByPath",
    } <= calls


@pytest.mark.parametrize("role", ["Prefill", "Decode", "Routers"])
def test_role_allows_exactly_what_its_programs_call(role: str) -> None:
    calls = called(*(ROOT / "runtime").glob("*.py"))
    if role == "Routers":
        calls = calls - {"s3:GetObject", "s3:ListBucket", "ssm:GetParameter"} | called(ROOT / "router" / "discovery.py")
    kind = "routing" if role == "Routers" else "engines"
    granted = set.union(*(allowed(synthesise(config("p5en", **given))[kind], role) for given in (WEIGHTS, TOKEN)))
    assert granted == calls | AGENTS


def test_rep_31_no_managed_policy_reads_parameters_for_a_node() -> None:
    # AmazonSSMManagedInstanceCore allows ssm:GetParameter on every parameter of the account.
    for kind in ("engines", "routing"):
        for role in of_type(synthesise(config("p5en"))[kind], "IAM::Role").values():
            assert not role.get("ManagedPolicyArns")
