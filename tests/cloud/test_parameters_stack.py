"""The synthesised template holds the whole schema, and Parameter Store's limits are kept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from runtime.parameters import PARAMETERS, Kind, Parameter
from tests.cloud.synth import PROFILES, config, of_profile, of_type, synthesise

_IDS = [p.name for p in PARAMETERS]
Resources = dict[str, dict[str, Any]]
PREFIX = "/kv-roundtrip"


def by_name_of(template: dict[str, Any]) -> Resources:
    return {entry["Name"]: entry for entry in of_type(template, "SSM::Parameter").values()}


@pytest.fixture(scope="module")
def by_name() -> Resources:
    """Properties of the template's SSM parameters by the name they get."""
    return by_name_of(of_profile("p5en")["parameters"])


def properties(by_name: Resources, parameter: Parameter) -> dict[str, Any]:
    return by_name[f"{PREFIX}/{parameter.name}"]


def test_names_are_the_schemas(by_name: Resources) -> None:
    assert set(by_name) == {f"/kv-roundtrip/{p.name}" for p in PARAMETERS}


def test_a_deployment_of_another_name_has_its_own() -> None:
    found = by_name_of(synthesise(config("cpu", name="team-eu"))["parameters"])
    assert set(found) == {f"/team-eu/{p.name}" for p in PARAMETERS}


def test_first_values_are_the_configurations() -> None:
    found = by_name_of(synthesise(config("cpu", tunables__handle_ttl="60"))["parameters"])
    assert found["/kv-roundtrip/handle_ttl"]["Value"] == "60"
    # No EFA to fall back from, and engines that share cores must not spin.
    assert found["/kv-roundtrip/transfer_floor"]["Value"] == "0"
    assert found["/kv-roundtrip/nixl_progress_delay"]["Value"] == "1000"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_value_is_within_the_schema_and_parameter_store_s_limits(profile: str) -> None:
    for name, entry in by_name_of(of_profile(profile)["parameters"]).items():
        parameter = next(p for p in PARAMETERS if name.endswith(f"/{p.name}"))
        parameter.parse(entry["Value"])
        assert re.search(entry.get("AllowedPattern", ""), entry["Value"])
        assert 1 <= len(entry["Value"]) <= 4096
        assert entry["Tier"] == "Standard"


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
