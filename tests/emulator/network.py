"""EC2's network types: groups with every rule they ask for, and the types which moto makes but never removes."""

from __future__ import annotations

from typing import Any

from tests.emulator.api import Properties
from tests.emulator.kinds import Kind, Made

_ANY = {"IpPermissions": [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]}


def _permission(rule: Properties) -> dict[str, Any]:
    """A rule as CloudFormation writes it, as EC2's API takes it."""
    permission: dict[str, Any] = {"IpProtocol": str(rule["IpProtocol"])}
    permission |= {key: rule[key] for key in ("FromPort", "ToPort") if key in rule}
    words = {"Description": rule["Description"]} if "Description" in rule else {}
    for source in ("SourceSecurityGroupId", "DestinationSecurityGroupId"):
        if source in rule:
            permission["UserIdGroupPairs"] = [{"GroupId": rule[source], **words}]
    if "CidrIp" in rule:
        permission["IpRanges"] = [{"CidrIp": rule["CidrIp"], **words}]
    if "CidrIpv6" in rule:
        permission["Ipv6Ranges"] = [{"CidrIpv6": rule["CidrIpv6"], **words}]
    for source in ("SourcePrefixListId", "DestinationPrefixListId"):
        if source in rule:
            permission["PrefixListIds"] = [{"PrefixListId": rule[source], **words}]
    return permission


def _change_rules(made: Made, group: str, verb: str, way: str, rules: list[Properties]) -> None:
    for rule in rules:
        made.call("ec2", f"{verb}_security_group_{way}", GroupId=group, IpPermissions=[_permission(rule)])


def _create_group(made: Made) -> None:
    asked = made.properties
    arguments = {"GroupName": made.id, "Description": asked["GroupDescription"], "VpcId": asked["VpcId"]}
    if asked.get("Tags"):
        arguments["TagSpecifications"] = [{"ResourceType": "security-group", "Tags": asked["Tags"]}]
    made.id = made.call("ec2", "create_security_group", **arguments)["GroupId"]
    made.attributes = {"GroupId": made.id, "Id": made.id, "VpcId": asked["VpcId"]}
    if asked.get("SecurityGroupEgress"):
        # As CloudFormation does: the rule that EC2 gives to a new group stays only where the template names none.
        made.call("ec2", "revoke_security_group_egress", GroupId=made.id, **_ANY)
    _change_rules(made, made.id, "authorize", "ingress", asked.get("SecurityGroupIngress", []))
    _change_rules(made, made.id, "authorize", "egress", asked.get("SecurityGroupEgress", []))


def _update_group(made: Made, asked: Properties) -> None:
    for way, key in (("ingress", "SecurityGroupIngress"), ("egress", "SecurityGroupEgress")):
        before, after = made.properties.get(key, []), asked.get(key, [])
        _change_rules(made, made.id, "revoke", way, [rule for rule in before if rule not in after])
        _change_rules(made, made.id, "authorize", way, [rule for rule in after if rule not in before])


def _delete_group(made: Made) -> None:
    made.call("ec2", "delete_security_group", GroupId=made.id)


def _rule_kind(way: str) -> Kind:
    """A rule of its own, outside of its group."""

    def create(made: Made) -> None:
        group = made.properties["GroupId"]
        answer = made.call(
            "ec2", f"authorize_security_group_{way}", GroupId=group, IpPermissions=[_permission(made.properties)]
        )
        made.id = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        made.attributes = {"Id": made.id}

    def delete(made: Made) -> None:
        _change_rules(made, made.properties["GroupId"], "revoke", way, [made.properties])

    return Kind(f"AWS::EC2::SecurityGroup{way.capitalize()}", create, delete)


def _create_placement(made: Made) -> None:
    asked = {"Strategy": made.properties.get("Strategy", "cluster"), "GroupName": made.id}
    if made.properties.get("Tags"):
        asked["TagSpecifications"] = [{"ResourceType": "placement-group", "Tags": made.properties["Tags"]}]
    made.call("ec2", "create_placement_group", **asked)
    made.attributes = {"GroupName": made.id}


def _delete_placement(made: Made) -> None:
    made.call("ec2", "delete_placement_group", GroupName=made.id)


def _resource(
    type_: str, create: str, answer: tuple[str, str], delete: str, *, tag: str, many: str = "", attribute: str = "Id"
) -> Kind:
    """A type that EC2 names itself: `answer` is where the new id stands; with `many` the delete takes a list of that name."""
    holder, key = answer

    def make(made: Made) -> None:
        asked = {name: value for name, value in made.properties.items() if name != "Tags"}
        if made.properties.get("Tags"):
            asked["TagSpecifications"] = [{"ResourceType": tag, "Tags": made.properties["Tags"]}]
        found = made.call("ec2", create, **asked)
        found = found[holder] if holder else found
        made.id = found[key]
        made.attributes = {attribute: made.id} | {name: v for name, v in found.items() if isinstance(v, str)}

    def remove(made: Made) -> None:
        made.call("ec2", delete, **({many: [made.id]} if many else {key: made.id}))

    return Kind(type_, make, remove)


def _create_route(made: Made) -> None:
    made.call("ec2", "create_route", **made.properties)
    made.id = f"{made.properties['RouteTableId']}|{_destination(made)}"


def _delete_route(made: Made) -> None:
    made.call("ec2", "delete_route", RouteTableId=made.properties["RouteTableId"], **_destination(made))


def _destination(made: Made) -> dict[str, Any]:
    keys = ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")
    return {key: made.properties[key] for key in keys if key in made.properties}


def _attach(made: Made) -> None:
    made.call("ec2", "attach_internet_gateway", **made.properties)
    made.id = f"IGW|{made.properties['VpcId']}"


def _detach(made: Made) -> None:
    made.call("ec2", "detach_internet_gateway", **made.properties)


def _create_address(made: Made) -> None:
    tags = made.properties.get("Tags")
    asked = {"TagSpecifications": [{"ResourceType": "elastic-ip", "Tags": tags}]} if tags else {}
    found = made.call("ec2", "allocate_address", Domain="vpc", **asked)
    made.id = found["PublicIp"]
    made.attributes = {"AllocationId": found["AllocationId"], "PublicIp": made.id}


def _delete_address(made: Made) -> None:
    made.call("ec2", "release_address", AllocationId=made.attributes["AllocationId"])


def _create_flow_log(made: Made) -> None:
    asked = {name: value for name, value in made.properties.items() if name not in ("ResourceId", "Tags")}
    answer = made.call("ec2", "create_flow_logs", ResourceIds=[made.properties["ResourceId"]], **asked)
    if answer.get("Unsuccessful"):
        raise ValueError(f"flow log: {answer['Unsuccessful']}")
    made.id = answer["FlowLogIds"][0]
    made.attributes = {"Id": made.id}


def _delete_flow_log(made: Made) -> None:
    made.call("ec2", "delete_flow_logs", FlowLogIds=[made.id])


KINDS = (
    Kind("AWS::EC2::SecurityGroup", _create_group, _delete_group, _update_group, name="GroupName"),
    _rule_kind("ingress"),
    _rule_kind("egress"),
    Kind("AWS::EC2::PlacementGroup", _create_placement, _delete_placement, name="GroupName"),
    Kind("AWS::EC2::Route", _create_route, _delete_route),
    Kind("AWS::EC2::VPCGatewayAttachment", _attach, _detach),
    Kind("AWS::EC2::FlowLog", _create_flow_log, _delete_flow_log),
    _resource(
        "AWS::EC2::RouteTable",
        "create_route_table",
        ("RouteTable", "RouteTableId"),
        "delete_route_table",
        tag="route-table",
        attribute="RouteTableId",
    ),
    _resource(
        "AWS::EC2::SubnetRouteTableAssociation",
        "associate_route_table",
        ("", "AssociationId"),
        "disassociate_route_table",
        tag="",
    ),
    _resource(
        "AWS::EC2::InternetGateway",
        "create_internet_gateway",
        ("InternetGateway", "InternetGatewayId"),
        "delete_internet_gateway",
        tag="internet-gateway",
        attribute="InternetGatewayId",
    ),
    Kind("AWS::EC2::EIP", _create_address, _delete_address),
    _resource(
        "AWS::EC2::NatGateway",
        "create_nat_gateway",
        ("NatGateway", "NatGatewayId"),
        "delete_nat_gateway",
        tag="natgateway",
        attribute="NatGatewayId",
    ),
    _resource(
        "AWS::EC2::VPCEndpoint",
        "create_vpc_endpoint",
        ("VpcEndpoint", "VpcEndpointId"),
        "delete_vpc_endpoints",
        tag="vpc-endpoint",
        many="VpcEndpointIds",
    ),
)
