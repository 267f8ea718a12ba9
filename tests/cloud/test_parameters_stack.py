"""The synthesised template holds the whole schema, and Parameter Store's limits are kept."""

from __future__ import annotations

import re
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from runtime.parameters import PARAMETERS, Kind, Parameter
from stacks.deployment import DEFAULT_PREFIX, Deployment

_IDS = [p.name for p in PARAMETERS]
Resources = dict[str, dict[str, Any]]


def synthesise(prefix: str) -> Template:
    return Template.from_stack(Deployment(cdk.App(), "kv-roundtrip", prefix=prefix))


@pytest.fixture(scope="module")
def by_name() -> Resources:
    """Properties of the template's SSM parameters by the name they get."""
    found = synthesise(DEFAULT_PREFIX).find_resources("AWS::SSM::Parameter")
    return {resource["Properties"]["Name"]: resource["Properties"] for resource in found.values()}


def properties(by_name: Resources, parameter: Parameter) -> dict[str, Any]:
    return by_name[f"{DEFAULT_PREFIX}/{parameter.name}"]


def test_one_parameter_per_schema_entry() -> None:
    synthesise(DEFAULT_PREFIX).resource_count_is("AWS::SSM::Parameter", len(PARAMETERS))


def test_names_are_the_schemas(by_name: Resources) -> None:
    assert set(by_name) == {f"/kv-roundtrip/{p.name}" for p in PARAMETERS}


def test_prefix_is_configurable() -> None:
    found = synthesise("/team/eu").find_resources("AWS::SSM::Parameter")
    assert {r["Properties"]["Name"] for r in found.values()} == {f"/team/eu/{p.name}" for p in PARAMETERS}


@pytest.mark.parametrize("prefix", ["", "kv", "/", "/kv/", "/kv roundtrip", "/aws/kv", "/SSM-kv"])
def test_prefix_that_parameter_store_refuses_is_named(prefix: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"prefix is {prefix!r}")):
        synthesise(prefix)


@pytest.mark.parametrize("parameter", PARAMETERS, ids=_IDS)
def test_value_reads_back_as_the_default(by_name: Resources, parameter: Parameter) -> None:
    value = properties(by_name, parameter)["Value"]
    assert 1 <= len(value) <= 4096
    assert parameter.parse(value) == parameter.default


@pytest.mark.parametrize("parameter", PARAMETERS, ids=_IDS)
def test_description_fits_and_says_what_the_schema_says(by_name: Resources, parameter: Parameter) -> None:
    description = properties(by_name, parameter)["Description"]
    assert len(description) <= 1024
    for part in (parameter.sentence, parameter.bounds, parameter.unit, parameter.apply.value):
        assert part in description


@pytest.mark.parametrize("parameter", PARAMETERS, ids=_IDS)
def test_tags_say_who_reads_and_when(by_name: Resources, parameter: Parameter) -> None:
    tags = properties(by_name, parameter)["Tags"]
    assert tags["project"] == "kv-roundtrip"
    assert tags["kv-roundtrip:apply"] == parameter.apply.value
    assert tags["kv-roundtrip:readers"].split() == [r.value for r in parameter.readers]
    assert all(re.fullmatch(r"[\w .:/=+@-]{0,256}", value) for value in tags.values())


@pytest.mark.parametrize(
    "parameter", [p for p in PARAMETERS if p.kind is not Kind.TEXT or p.choices], ids=lambda p: p.name
)
def test_pattern_takes_the_default_and_refuses_other_kinds(by_name: Resources, parameter: Parameter) -> None:
    entry = properties(by_name, parameter)
    pattern = entry["AllowedPattern"]
    assert len(pattern) <= 1024
    assert re.search(pattern, entry["Value"])
    for wrong in ("abc", "", " ", f"{entry['Value']} x"):
        assert not re.search(pattern, wrong), wrong


def test_template_is_bound_to_no_account() -> None:
    stack = Deployment(cdk.App(), "kv-roundtrip")
    assert cdk.Token.is_unresolved(stack.account)
    assert cdk.Token.is_unresolved(stack.region)
