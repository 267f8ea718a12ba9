"""Launch templates and groups: NIC layouts, capacity, roll-out, the load budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.address import Interface
from runtime.launch import Host, argv, environment
from runtime.node import NodeConfig
from runtime.parameters import BY_NAME, Tunables
from stacks.machines import ENGINES
from stacks.userdata import LONGEST
from tests.cloud.synth import PINNED, PROFILES, config, of_profile, of_type, one, synthesise, text

ROLES = ("Prefill", "Decode")

# type -> EFA-only interfaces, whether card 0 has one, cards; AWS.md section 1, "present rule gives".
NIC_TABLE = {
    "p5en.48xlarge": (16, True, 16, 17),
    "p5.48xlarge": (32, True, 32, 33),
    "p5e.48xlarge": (32, True, 32, 33),
    "p6-b200.48xlarge": (8, True, 8, 9),
    "p6-b300.48xlarge": (16, False, 17, 17),
    "trn2.48xlarge": (16, True, 16, 17),
    "trn2.3xlarge": (1, True, 1, 2),
    "trn1.32xlarge": (8, True, 8, 9),
    "trn1n.32xlarge": (16, True, 16, 17),
    "g6e.8xlarge": (1, True, 1, 2),
    "g6e.12xlarge": (1, True, 1, 2),
    "g6e.24xlarge": (2, True, 2, 3),
    "g6e.48xlarge": (4, True, 4, 5),
    "c7i.2xlarge": (0, False, 1, 1),
}


def of_machine(kind: str, **changes: Any) -> dict[str, Any]:
    ranks = ENGINES[kind].ranks
    return synthesise(config("p5en", instance_type=kind, tensor_parallel=ranks, **changes))["engines"]


def launch(template: dict[str, Any], role: str) -> dict[str, Any]:
    data: dict[str, Any] = one(template, "EC2::LaunchTemplate", role)["LaunchTemplateData"]
    return data


def group(template: dict[str, Any], role: str) -> dict[str, Any]:
    found = [r for n, r in template["Resources"].items() if r["Type"].endswith("::AutoScalingGroup") and role in n]
    assert len(found) == 1
    whole: dict[str, Any] = found[0]
    return whole


def seconds(duration: str) -> int:
    """ISO 8601, of the form that CDK writes: PT50M or PT1H10M."""
    total, number = 0, ""
    for letter in duration.removeprefix("PT"):
        if letter.isdigit():
            number += letter
        else:
            total += int(number) * {"H": 3600, "M": 60, "S": 1}[letter]
            number = ""
    return total


@pytest.mark.parametrize("kind", NIC_TABLE)
def test_rep_29_nic_layout_of_every_type_we_support(kind: str) -> None:
    efa, on_first, cards, total = NIC_TABLE[kind]
    template = of_machine(kind)
    for role in ROLES:
        interfaces = launch(template, role)["NetworkInterfaces"]
        assert len(interfaces) == total
        places = [(nic["NetworkCardIndex"], nic["DeviceIndex"]) for nic in interfaces]
        assert len(set(places)) == total
        assert places[0] == (0, 0)
        assert interfaces[0]["InterfaceType"] == "interface"
        rest = interfaces[1:]
        assert {nic["InterfaceType"] for nic in rest} <= {"efa-only"}
        assert len(rest) == efa
        assert ((0, 1) in places) == on_first
        assert [place for place in places if place[0]] == [(card, 0) for card in range(1, cards)]
        for nic in interfaces:
            assert nic["DeleteOnTermination"] is True
            assert "AssociatePublicIpAddress" not in nic
            assert "SubnetId" not in nic
            assert nic["Groups"] == interfaces[0]["Groups"]
            assert len(nic["Groups"]) == 1
        assert "SecurityGroupIds" not in launch(template, role)


@pytest.mark.parametrize("kind", [kind for kind, machine in ENGINES.items() if machine.efa])
def test_rep_15_the_start_command_of_every_efa_node_names_libfabric(kind: str) -> None:
    template = of_machine(kind)
    host = Host(Interface("eth0", "10.0.0.1"), "/weights", Path("/tunables.json"), "bfloat16", 1)
    for role in ROLES:
        node = node_of(launch(template, role))
        line = argv(node, Tunables.of(), host)
        config = json.loads(line[line.index("--kv-transfer-config") + 1])
        assert config["kv_connector_extra_config"]["backends"] == ["LIBFABRIC"]
        assert config["kv_buffer_device"] == "cuda"
        assert config["kv_role"] == ("kv_producer" if role == "Prefill" else "kv_consumer")
        assert environment(node, Tunables.of(), host, {})["FI_PROVIDER"] == "efa"


def test_every_engine_type_is_in_the_table_of_this_test() -> None:
    small = {kind for kind, machine in ENGINES.items() if not machine.efa}
    assert set(ENGINES) - small <= set(NIC_TABLE)


@pytest.mark.parametrize("profile", PROFILES)
def test_all_engines_are_in_one_private_subnet(profile: str) -> None:
    templates = of_profile(profile)
    zones = {role: group(templates["engines"], role)["Properties"]["VPCZoneIdentifier"] for role in ROLES}
    assert zones["Prefill"] == zones["Decode"]
    assert len(zones["Prefill"]) == 1
    subnet = one(templates["network"], "EC2::Subnet", "EngineSubnet")
    assert subnet["MapPublicIpOnLaunch"] is False
    assert subnet["AvailabilityZoneId"] == config(profile).engine_zone


@pytest.mark.parametrize("profile", PROFILES)
def test_rep_18_image_is_pinned_and_a_changed_flag_rolls_out(profile: str) -> None:
    before = of_profile(profile)["engines"]
    after = synthesise(config(profile, model__max_model_len=4096))["engines"]
    for role in ROLES:
        assert launch(before, role)["ImageId"] == PINNED["images.engine"]
        assert launch(before, role)["UserData"] != launch(after, role)["UserData"]
        whole = group(before, role)
        assert "GetAtt" in json.dumps(whole["Properties"]["LaunchTemplate"]["Version"])
        rolling = whole["UpdatePolicy"]["AutoScalingRollingUpdate"]
        assert rolling["MinInstancesInService"] < int(whole["Properties"]["DesiredCapacity"])
        assert rolling["WaitOnResourceSignals"] is True


@pytest.mark.parametrize("minutes", [3, 40, 50])
def test_rep_19_every_wait_follows_from_the_load_budget(minutes: int) -> None:
    templates = synthesise(config("p5en", load_budget_minutes=minutes))
    for template, roles in ((templates["engines"], ROLES), (templates["routing"], ("Routers",))):
        for role in roles:
            whole = group(template, role)
            properties = whole["Properties"]
            hooks = {hook["LifecycleTransition"]: hook for hook in properties["LifecycleHookSpecificationList"]}
            start = hooks["autoscaling:EC2_INSTANCE_LAUNCHING"]
            waits = [
                properties["HealthCheckGracePeriod"],
                start["HeartbeatTimeout"],
                seconds(whole["CreationPolicy"]["ResourceSignal"]["Timeout"]),
                seconds(whole["UpdatePolicy"]["AutoScalingRollingUpdate"]["PauseTime"]),
            ]
            assert min(waits) >= minutes * 60 + 300
            assert max(waits) <= 7200
            assert start["DefaultResult"] == "ABANDON"
            assert all(hook["HeartbeatTimeout"] <= 7200 for hook in hooks.values())


@pytest.mark.parametrize("minutes", [51, 60])
def test_cloudformation_takes_no_pause_above_an_hour(minutes: int) -> None:
    template = synthesise(config("p5en", load_budget_minutes=minutes))["engines"]
    for role in ROLES:
        whole = group(template, role)
        # "PauseTime must be ... no greater than PT3600S": https://github.com/aws/aws-cdk/issues/1113
        assert seconds(whole["UpdatePolicy"]["AutoScalingRollingUpdate"]["PauseTime"]) == 3600
        assert seconds(whole["CreationPolicy"]["ResourceSignal"]["Timeout"]) == minutes * 60 + 600


def test_a_node_that_says_nothing_holds_up_its_end_for_minutes_and_one_that_drains_for_its_longest_drain() -> None:
    longest = BY_NAME["node_drain_timeout"].maximum
    for profile in PROFILES:
        templates = of_profile(profile)
        for template, roles in ((templates["engines"], ROLES), (templates["routing"], ("Routers",))):
            for role in roles:
                hooks = group(template, role)["Properties"]["LifecycleHookSpecificationList"]
                end = next(h for h in hooks if h["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING")
                assert end["DefaultResult"] == "CONTINUE"
                # An agent asks again every minute, and may do so for a hundred time-outs.
                assert 5 * 60 <= end["HeartbeatTimeout"] <= 15 * 60
                assert 100 * end["HeartbeatTimeout"] > longest


def test_nodes_have_their_rights_before_they_start_and_until_they_are_gone() -> None:
    templates = of_profile("p5en")
    for template, roles in ((templates["engines"], ROLES), (templates["routing"], ("Routers",))):
        for role in roles:
            needed = set(group(template, role)["DependsOn"])
            for kind in ("IAM::Policy", "IAM::InstanceProfile"):
                assert {name for name in of_type(template, kind) if role in name} <= needed, (role, kind)


@pytest.mark.parametrize("profile", PROFILES)
def test_disks_are_encrypted_and_metadata_needs_a_token(profile: str) -> None:
    templates = of_profile(profile)
    found = [
        *of_type(templates["engines"], "EC2::LaunchTemplate").values(),
        one(templates["routing"], "EC2::LaunchTemplate"),
    ]
    assert len(found) == 3
    for properties in found:
        data = properties["LaunchTemplateData"]
        assert data["MetadataOptions"] == {
            "HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1,
        }  # fmt: skip
        for disk in data["BlockDeviceMappings"]:
            assert disk["Ebs"]["Encrypted"] is True
            assert disk["Ebs"]["VolumeType"] == "gp3"


def test_on_demand_has_a_placement_group_and_names_no_reservation() -> None:
    template = of_profile("p5en")["engines"]
    assert one(template, "EC2::PlacementGroup")["Strategy"] == "cluster"
    for role in ROLES:
        assert "Ref" in group(template, role)["Properties"]["PlacementGroup"]
        assert "CapacityReservationSpecification" not in launch(template, role)
        assert "InstanceMarketOptions" not in launch(template, role)


def test_plain_machines_have_no_placement_group() -> None:
    template = of_profile("cpu")["engines"]
    assert not of_type(template, "EC2::PlacementGroup")
    assert "PlacementGroup" not in group(template, "Decode")["Properties"]


def test_reservation_is_targeted_and_never_falls_back_to_on_demand() -> None:
    template = synthesise(config("p5en", capacity__kind="reservation", capacity__id="cr-0123456789abcdef0"))["engines"]
    for role in ROLES:
        # On the group alone: AWS documents one place or the other, not both.
        assert "CapacityReservationSpecification" not in launch(template, role)
        assert group(template, role)["Properties"]["CapacityReservationSpecification"] == {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationIds": ["cr-0123456789abcdef0"]},
        }
        assert "InstanceMarketOptions" not in launch(template, role)
    assert of_type(template, "EC2::PlacementGroup")


def test_capacity_block_has_its_market_type_no_placement_group_and_a_known_end() -> None:
    end = "2027-03-01T11:30Z"
    templates = synthesise(
        config("p5en", capacity__kind="block", capacity__id="cr-0123456789abcdef0", capacity__ends_at=end)
    )
    for role in ROLES:
        data = launch(templates["engines"], role)
        assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        assert data["CapacityReservationSpecification"]["CapacityReservationTarget"]["CapacityReservationId"]
        assert "PlacementGroup" not in group(templates["engines"], role)["Properties"]
    assert not of_type(templates["engines"], "EC2::PlacementGroup")
    parameters = of_type(templates["parameters"], "SSM::Parameter").values()
    assert [p["Value"] for p in parameters if p["Name"].endswith("/capacity_block_end")] == [end]


def node_of(data: dict[str, Any]) -> NodeConfig:
    script = text(data["UserData"])
    start = script.index("<<'NODE'\n") + len("<<'NODE'\n")
    return NodeConfig.parse(json.loads(script[start : script.index("\nNODE\n")]))


@pytest.mark.parametrize("profile", PROFILES)
def test_user_data_is_a_node_configuration(profile: str) -> None:
    templates, machine = of_profile(profile), config(profile).machine
    for role in ROLES:
        node = node_of(launch(templates["engines"], role))
        assert node.role == role.lower()
        assert (node.build, node.efa_interfaces, node.accelerators) == (
            PINNED["images.engine"], machine.efa, machine.accelerators,
        )  # fmt: skip
        assert group(templates["engines"], role)["Properties"]["AutoScalingGroupName"] == node.group
        assert node.group_resource in templates["engines"]["Resources"]
        hooks = group(templates["engines"], role)["Properties"]["LifecycleHookSpecificationList"]
        assert {hook["LifecycleHookName"] for hook in hooks} == {node.launch_hook, node.terminate_hook}
        names = {p["Name"] for p in of_type(templates["parameters"], "SSM::Parameter").values()}
        assert all(name.startswith(f"{node.parameters}/") for name in names)
    router = node_of(one(templates["routing"], "EC2::LaunchTemplate")["LaunchTemplateData"])
    assert router.role == "router"
    assert not router.valkey


def test_several_routers_are_told_of_their_store() -> None:
    template = synthesise(config("p5en", router__count=2))["routing"]
    data = text(one(template, "EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"])
    assert '"valkey": "?:6379"' in data


def test_routers_find_engines_by_the_tags_of_the_launch_template() -> None:
    for role in ROLES:
        specifications = launch(of_profile("p5en")["engines"], role)["TagSpecifications"]
        tags = {s["ResourceType"]: {tag["Key"]: tag["Value"] for tag in s["Tags"]} for s in specifications}
        found = tags["instance"]
        assert found["kv-roundtrip:deployment"] == "kv-roundtrip"
        assert found["kv-roundtrip:role"] == role.lower()
        assert found["kv-roundtrip:build"] == PINNED["images.engine"]
        assert found["kv-roundtrip:port"] == "8000"
        assert set(tags) == {"instance", "volume", "network-interface"}


def test_user_data_fits_at_the_longest_values() -> None:
    longest = "m" * 128
    given = config(
        "p5en",
        name="a" + "b" * 15,
        model__name=longest,
        model__served_name=longest,
        model__weights=f"s3://{'b' * 63}/{'k' * 256}",
    )
    templates = synthesise(given)
    for role in ROLES:
        assert len(text(launch(templates["engines"], role)["UserData"]).encode()) < LONGEST
    token = config("p5en", model__name=longest, model__hub_token_parameter="/" + "t" * 500)
    for role in ROLES:
        assert len(text(launch(synthesise(token)["engines"], role)["UserData"]).encode()) < LONGEST
