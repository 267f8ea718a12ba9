"""What clients reach: an Application Load Balancer fit for long streams, and routers in two zones behind it."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_route53 as route53
from constructs import Construct

from stacks.config import Config
from stacks.fleet import NodeGroup, Place
from stacks.interfaces import interfaces
from stacks.network import NetworkStack
from stacks.valkey import Valkey
from stacks.waf import Firewall

_TLS_POLICY = "ELBSecurityPolicy-TLS13-1-2-Res-2021-06"


class RoutingStack(cdk.Stack):
    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, network: NetworkStack, image: str,
        env: cdk.Environment,
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id, env=env, description="KV Roundtrip: load balancer and routers")
        self._config = config
        self.balancer = self._balancer(network)
        self.target_group = self._target_group(network)
        listener = self._listener()
        if config.edge.waf:
            Firewall(self, "Firewall", balancer_arn=self.balancer.ref)
        if config.edge.domain:
            self._record()
        # Several routers share the handles; one keeps them in its memory.
        store = None
        if config.router.count > 1:
            store = Valkey(
                self, "Valkey", name=config.name, subnets=network.subnets.router,
                group=network.valkey_group.security_group_id,
            )  # fmt: skip
        self.routers = NodeGroup(
            self,
            "Routers",
            config=config,
            role="router",
            count=config.router.count,
            instance_type=config.router.instance_type,
            image=image,
            place=Place(
                network.subnets.router, interfaces(config.router_machine, [network.router_group.security_group_id])
            ),
            valkey=store.endpoint if store else "",
            target_groups=[self.target_group.ref],
            spare=config.router.count - 1,
        )
        # A group refuses a target group that no listener uses.
        self.routers.group.add_resource_dependency(listener)
        self._outputs()

    def _balancer(self, network: NetworkStack) -> elb.CfnLoadBalancer:
        edge = self._config.edge
        attributes = {
            "idle_timeout.timeout_seconds": str(edge.longest_silence_s),
            "routing.http.drop_invalid_header_fields.enabled": "true",
            "routing.http.desync_mitigation_mode": "defensive",
            "access_logs.s3.enabled": str(bool(edge.access_log_bucket)).lower(),
        }
        if edge.access_log_bucket:
            attributes["access_logs.s3.bucket"] = edge.access_log_bucket
        return elb.CfnLoadBalancer(
            self,
            "Balancer",
            # No name, nor has the target group one: a change that needs another balancer, such as edge.public, would fail at a name
            # that the old one still has.
            type="application",
            scheme="internet-facing" if edge.public else "internal",
            subnets=network.subnets.edge,
            security_groups=[network.edge_group.security_group_id],
            load_balancer_attributes=[
                elb.CfnLoadBalancer.LoadBalancerAttributeProperty(key=key, value=value)
                for key, value in attributes.items()
            ],
        )

    def _target_group(self, network: NetworkStack) -> elb.CfnTargetGroup:
        attributes: Mapping[str, str] = {
            # A router that leaves may finish its streams.
            "deregistration_delay.timeout_seconds": str(self._config.edge.longest_stream_s),
            "load_balancing.algorithm.type": "least_outstanding_requests",
            # The conversation map is the routers' own.
            "stickiness.enabled": "false",
        }
        return elb.CfnTargetGroup(
            self,
            "Targets",
            port=self._config.router.port,
            protocol="HTTP",
            target_type="instance",
            vpc_id=network.vpc.vpc_id,
            health_check_path="/ready",
            health_check_interval_seconds=10,
            health_check_timeout_seconds=5,
            healthy_threshold_count=2,
            unhealthy_threshold_count=3,
            matcher=elb.CfnTargetGroup.MatcherProperty(http_code="200"),
            target_group_attributes=[
                elb.CfnTargetGroup.TargetGroupAttributeProperty(key=key, value=value)
                for key, value in attributes.items()
            ],
        )

    def _listener(self) -> elb.CfnListener:
        certificate = self._config.edge.certificate_arn
        certificates = [elb.CfnListener.CertificateProperty(certificate_arn=certificate)] if certificate else None
        return elb.CfnListener(
            self,
            "Listener",
            load_balancer_arn=self.balancer.ref,
            port=443 if certificate else 80,
            protocol="HTTPS" if certificate else "HTTP",
            certificates=certificates,
            ssl_policy=_TLS_POLICY if certificate else None,
            default_actions=[elb.CfnListener.ActionProperty(type="forward", target_group_arn=self.target_group.ref)],
        )

    def _record(self) -> None:
        route53.CfnRecordSet(
            self,
            "Record",
            hosted_zone_id=self._config.edge.hosted_zone_id,
            name=self._config.edge.domain,
            type="A",
            alias_target=route53.CfnRecordSet.AliasTargetProperty(
                dns_name=self.balancer.attr_dns_name, hosted_zone_id=self.balancer.attr_canonical_hosted_zone_id
            ),
        )

    def _outputs(self) -> None:
        scheme = "https" if self._config.edge.certificate_arn else "http"
        host = self._config.edge.domain or self.balancer.attr_dns_name
        cdk.CfnOutput(self, "Url", value=f"{scheme}://{host}", description="OpenAI-compatible endpoint; add /v1")
