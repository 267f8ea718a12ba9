"""Who can reach whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cloud.synth import PROFILES, config, of_profile, of_type, one, synthesise

IMPORTED = {
    "network__vpc_id": "vpc-0123456789abcdef0",
    "network__cidr": "172.31.0.0/16",
    "network__engine_subnet_ids": ["subnet-0123456789abcdef0"],
    "network__router_subnet_ids": ["subnet-0123456789abcdef1", "subnet-0123456789abcdef2"],
    "network__edge_subnet_ids": ["subnet-0123456789abcdef3", "subnet-0123456789abcdef4"],
}


def group_id(template: dict[str, Any], name: str) -> str:
    found = [key for key in of_type(template, "EC2::SecurityGroup") if key.startswith(f"{name}Group")]
    assert len(found) == 1
    return found[0]


def ingress(template: dict[str, Any], group: str) -> list[dict[str, Any]]:
    """Rules of the group and those that are resources of their own."""
    own = of_type(template, "EC2::SecurityGroup")[group].get("SecurityGroupIngress", [])
    apart = of_type(template, "EC2::SecurityGroupIngress").values()
    return [*own, *(rule for rule in apart if rule["GroupId"]["Fn::GetAtt"][0] == group)]


@pytest.mark.parametrize("profile", PROFILES)
def test_rep_17_efa_group_has_self_ingress_self_egress_and_a_way_out(profile: str, capsys: Any) -> None:
    template = synthesise(config(profile))["network"]
    assert "Ignoring Egress" not in capsys.readouterr().err
    engine = group_id(template, "Engine")
    itself = {"Fn::GetAtt": [engine, "GroupId"]}
    into = [r for r in of_type(template, "EC2::SecurityGroupIngress").values() if r["GroupId"] == itself]
    out = [r for r in of_type(template, "EC2::SecurityGroupEgress").values() if r["GroupId"] == itself]
    assert [r["IpProtocol"] for r in into if r.get("SourceSecurityGroupId") == itself] == ["-1"]
    assert [r["IpProtocol"] for r in out if r.get("DestinationSecurityGroupId") == itself] == ["-1"]
    rules = of_type(template, "EC2::SecurityGroup")[engine]["SecurityGroupEgress"]
    assert [(r["CidrIp"], r["FromPort"], r["ToPort"]) for r in rules] == [("0.0.0.0/0", 443, 443)]
    routes = [r for name, r in of_type(template, "EC2::Route").items() if name.startswith("EngineSubnet")]
    assert [bool(r.get("NatGatewayId")) for r in routes] == [True]


@pytest.mark.parametrize("profile", PROFILES)
def test_rep_05_engine_ports_are_reached_from_routers_and_peers_only(profile: str) -> None:
    template = of_profile(profile)["network"]
    engine, router, edge = (group_id(template, name) for name in ("Engine", "Router", "Edge"))
    sources = {json.dumps(r["SourceSecurityGroupId"]) for r in ingress(template, engine)}
    assert sources == {json.dumps({"Fn::GetAtt": [name, "GroupId"]}) for name in (engine, router)}
    assert not any("CidrIp" in r for r in ingress(template, engine))
    assert [r["SourceSecurityGroupId"]["Fn::GetAtt"][0] for r in ingress(template, router)] == [edge]
    assert [r["SourceSecurityGroupId"]["Fn::GetAtt"][0] for r in ingress(template, group_id(template, "Valkey"))] == [
        router
    ]


def test_clients_reach_the_balancer_from_the_vpc_unless_the_config_names_others() -> None:
    inside = of_profile("cpu")["network"]
    assert [r["CidrIp"] for r in ingress(inside, group_id(inside, "Edge"))] == ["10.40.0.0/16"]
    wanted = synthesise(config("cpu", edge__public=True, edge__allowed_cidrs=["203.0.113.0/24"]))["network"]
    assert [(r["CidrIp"], r["FromPort"]) for r in ingress(wanted, group_id(wanted, "Edge"))] == [("203.0.113.0/24", 80)]


def test_endpoints_and_s3_are_reached_from_the_engine_subnet() -> None:
    template = of_profile("p5en")["network"]
    endpoints = of_type(template, "EC2::VPCEndpoint")
    services = {json.dumps(e["ServiceName"]).split(".")[-1].rstrip('"]} ') for e in endpoints.values()}
    assert {"ssm", "logs", "s3", "api", "dkr", "autoscaling", "monitoring"} <= services
    gateway = [e for e in endpoints.values() if e.get("VpcEndpointType", "Gateway") == "Gateway"]
    assert "EngineSubnet" in json.dumps(gateway[0]["RouteTableIds"])


def test_zone_ids_are_what_the_template_holds() -> None:
    given = config("p5en")
    zones = [s.get("AvailabilityZoneId") for s in of_type(of_profile("p5en")["network"], "EC2::Subnet").values()]
    assert len(zones) == 5
    assert set(zones) == set(given.edge_zones)
    assert not any("AvailabilityZone" in s for s in of_type(of_profile("p5en")["network"], "EC2::Subnet").values())


def test_imported_vpc_is_used_and_none_is_made() -> None:
    templates = synthesise(config("p5en", **IMPORTED))
    network = templates["network"]
    for kind in ("EC2::VPC", "EC2::Subnet", "EC2::NatGateway", "EC2::VPCEndpoint", "EC2::Route"):
        assert not of_type(network, kind)
    assert [r["CidrIp"] for r in ingress(network, group_id(network, "Edge"))] == ["172.31.0.0/16"]
    assert all(g["VpcId"] == "vpc-0123456789abcdef0" for g in of_type(network, "EC2::SecurityGroup").values())
    groups = of_type(templates["engines"], "AutoScaling::AutoScalingGroup").values()
    assert [g["VPCZoneIdentifier"] for g in groups] == [["subnet-0123456789abcdef0"]] * 2
    balancer = one(templates["routing"], "ElasticLoadBalancingV2::LoadBalancer")
    assert balancer["Subnets"] == ["subnet-0123456789abcdef3", "subnet-0123456789abcdef4"]
    routers = one(templates["routing"], "AutoScaling::AutoScalingGroup")
    assert routers["VPCZoneIdentifier"] == ["subnet-0123456789abcdef1", "subnet-0123456789abcdef2"]
