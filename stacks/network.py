"""VPC, subnets, endpoints and security groups: who may talk to whom is decided here and nowhere else."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.config import Config

ENGINE_PORT = 8000
SIDE_CHANNEL_PORT = 5600
VALKEY_PORT = 6379

# What nodes call; container registries for operators who run more on them.
ENDPOINTS = ("ssm", "ssmmessages", "ec2messages", "ec2", "autoscaling", "monitoring", "logs", "ecr.api", "ecr.dkr")


@dataclass(frozen=True, slots=True)
class Subnets:
    """`engine` is one private subnet: EFA traffic is not routed. The others are in the two edge zones."""

    engine: str
    router: list[str]
    edge: list[str]


class NetworkStack(cdk.Stack):
    def __init__(self, scope: Construct, construct_id: str, *, config: Config, env: cdk.Environment) -> None:
        super().__init__(
            scope, construct_id, env=env, description="KV Roundtrip: VPC, subnets, endpoints, security groups"
        )
        self._config = config
        self.vpc, self.subnets = self._imported() if config.network.vpc_id else self._new()
        self.edge_group = self._group("Edge", "Load balancer: clients in, routers out")
        self.router_group = self._group("Router", "Routers: load balancer in; engines, Valkey and AWS out")
        self.engine_group = self._group("Engine", "Engines: routers in; each other, all protocols, for EFA and NIXL")
        self.valkey_group = self._group("Valkey", "Handle store: routers in")
        self.builder_group = self._group("Builder", "Machines that build images: package indexes and AWS out")
        self._allow()
        if config.network.interface_endpoints and not config.network.vpc_id:
            self._endpoints()

    @property
    def availability_zones(self) -> list[str]:
        """Given, so that nothing is looked up in an account. Ids: `_use_zone_ids` puts them where CloudFormation takes ids."""
        return list(self._config.edge_zones)

    def _new(self) -> tuple[ec2.IVpc, Subnets]:
        config = self._config
        others = [zone for zone in config.edge_zones if zone != config.engine_zone]
        nat = ec2.NatProvider.gateway()
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(config.network.cidr),
            availability_zones=[config.engine_zone, *others],
            nat_gateway_provider=nat,
            nat_gateways=1,
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="edge", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=26, map_public_ip_on_launch=False
                ),
                ec2.SubnetConfiguration(name="router", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=26),
            ],
            gateway_endpoints={"S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3)},
            flow_logs={
                "Rejected": ec2.FlowLogOptions(
                    traffic_type=ec2.FlowLogTrafficType.REJECT,
                    destination=ec2.FlowLogDestination.to_cloud_watch_logs(self._flow_logs()),
                )
            },
        )
        engine = ec2.PrivateSubnet(
            self,
            "EngineSubnet",
            vpc_id=vpc.vpc_id,
            availability_zone=config.engine_zone,
            cidr_block=_last_block(config.network.cidr),
            map_public_ip_on_launch=False,
        )
        engine.add_default_nat_route(nat.configured_gateways[0].gateway_id)
        self._use_s3_endpoint(vpc, engine)
        for subnet in [*vpc.public_subnets, *vpc.private_subnets, engine]:
            _use_zone_id(subnet)
        self._engine_subnet: ec2.ISubnet = engine
        routers = [subnet.subnet_id for subnet in vpc.private_subnets]
        return vpc, Subnets(engine.subnet_id, routers, [subnet.subnet_id for subnet in vpc.public_subnets])

    def _flow_logs(self) -> logs.LogGroup:
        """What the security groups refused: the first look when engines do not reach each other."""
        return logs.LogGroup(
            self,
            "RefusedLogs",
            retention=logs.RetentionDays.ONE_WEEK,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )

    def _imported(self) -> tuple[ec2.IVpc, Subnets]:
        network = self._config.network
        vpc = ec2.Vpc.from_vpc_attributes(
            self, "Vpc", vpc_id=network.vpc_id, vpc_cidr_block=network.cidr, availability_zones=self.availability_zones
        )
        return vpc, Subnets(
            network.engine_subnet_ids[0], list(network.router_subnet_ids), list(network.edge_subnet_ids)
        )

    def _use_s3_endpoint(self, vpc: ec2.Vpc, subnet: ec2.PrivateSubnet) -> None:
        """Weights come from S3 past the NAT gateway, which charges per byte."""
        endpoint = vpc.node.find_child("S3").node.default_child
        assert isinstance(endpoint, ec2.CfnVPCEndpoint)
        tables = [*(s.route_table.route_table_id for s in [*vpc.public_subnets, *vpc.private_subnets])]
        endpoint.route_table_ids = [*tables, subnet.route_table.route_table_id]

    def _group(self, name: str, description: str) -> ec2.SecurityGroup:
        # Egress is listed rule by rule: beside allow-all CDK drops the egress to the group itself that EFA needs.
        return ec2.SecurityGroup(self, f"{name}Group", vpc=self.vpc, description=description, allow_all_outbound=False)

    def _allow(self) -> None:
        config = self._config
        client_port = 443 if config.edge.certificate_arn else 80
        clients = config.edge.allowed_cidrs or (config.network.cidr,)
        for cidr in clients:
            self.edge_group.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.tcp(client_port), "clients")
        _between(self.edge_group, self.router_group, config.router.port, "load balancer to routers")
        _between(self.router_group, self.engine_group, ENGINE_PORT, "routers to engines")
        _between(self.router_group, self.valkey_group, VALKEY_PORT, "routers to the handle store")
        self.engine_group.connections.allow_internally(ec2.Port.all_traffic(), "EFA and NIXL between engines")
        for group in (self.router_group, self.engine_group):
            group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS and the model hub")
        for port in (80, 443):
            self.builder_group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(port), "AWS and package indexes")

    def _endpoints(self) -> None:
        group = self._group("Endpoint", "Interface endpoints: nodes in")
        for name in ENDPOINTS:
            ec2.InterfaceVpcEndpoint(
                self,
                f"Endpoint{''.join(part.title() for part in name.split('.'))}",
                vpc=self.vpc,
                service=ec2.InterfaceVpcEndpointAwsService(name),
                security_groups=[group],
                open=False,
                # Requests in the other zone's routers cross over; one address each keeps the hourly cost down.
                subnets=ec2.SubnetSelection(subnets=[self._engine_subnet]),
            )
        for nodes in (self.engine_group, self.router_group, self.builder_group):
            _between(nodes, group, 443, "nodes to AWS")


def _between(source: ec2.SecurityGroup, target: ec2.SecurityGroup, port: int, description: str) -> None:
    """Both ends' rules, as resources of their own: two groups that name each other in their own rules can't be made."""
    target.connections.allow_from(source, ec2.Port.tcp(port), description)


def _use_zone_id(subnet: ec2.ISubnet) -> None:
    """Zone ids name the same place in every account. The property that CDK knows takes names only."""
    resource = subnet.node.default_child
    assert isinstance(resource, ec2.CfnSubnet)
    resource.add_property_deletion_override("AvailabilityZone")
    resource.add_property_override("AvailabilityZoneId", subnet.availability_zone)


def _last_block(cidr: str) -> str:
    """A /22 at the far end of the VPC, away from the subnets that CDK counts out from the start: 1,019 nodes."""
    return str(list(ipaddress.ip_network(cidr).subnets(new_prefix=22))[-1])
