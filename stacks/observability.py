"""What tells an operator that something is wrong: alarms, their topic and one dashboard.

Nodes' agents publish the metrics (`runtime/publish.py`); names here and there are compared by a test.
"""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.config import Config
from stacks.identity import METRICS_NAMESPACE
from stacks.parameters import ROLES
from stacks.userdata import group_name

_MINUTE = cdk.Duration.minutes(1)
# 99 % of first tokens in time; an hour at 14.4 times the allowed rate spends 2 % of a month's budget (SRE workbook, chapter 5).
_OBJECTIVE = 0.99
_FAST_BURN = 14.4
# AWS has documented this event under three names.
_BLOCK_ENDING = (
    "Capacity Block Expiration Warning",
    "Capacity Block Reservation Expiration Warning",
    "EC2 Capacity Reservation Instance Interruption Warning",
)


class ObservabilityStack(cdk.Stack):
    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, balancer: str | None, env: cdk.Environment
    ) -> None:
        """`balancer` is the load balancer's full name, None while images are not pinned."""
        super().__init__(scope, construct_id, env=env, description="KV Roundtrip: alarms, dashboard")
        self._config = config
        self.topic = self._topic()
        self._launch_failures()
        if config.capacity.kind == "block":
            self._block_ending()
        self.alarms = self._alarms(balancer)
        self._dashboard(balancer)

    def _topic(self) -> sns.Topic:
        key = kms.Key(
            self,
            "TopicKey",
            description=f"{self._config.name}: alarm texts",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            pending_window=cdk.Duration.days(7),
        )
        for service in ("cloudwatch.amazonaws.com", "events.amazonaws.com"):
            key.grant_encrypt_decrypt(iam.ServicePrincipal(service))
        topic = sns.Topic(self, "Alarms", display_name=f"{self._config.name} alarms", master_key=key, enforce_ssl=True)
        # A topic with a policy of its own has lost the default one, by which the account's alarms may publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": self.account}},
            )
        )
        if self._config.alarm_email:
            sns.CfnSubscription(
                self, "Mail", topic_arn=topic.topic_arn, protocol="email", endpoint=self._config.alarm_email
            )
        return topic

    def _rule(self, name: str, description: str, pattern: events.EventPattern) -> None:
        events.Rule(self, name, description=description, event_pattern=pattern, targets=[targets.SnsTopic(self.topic)])

    def _launch_failures(self) -> None:
        """Auto Scaling has no metric for them. A node that a hook abandons counts as one too."""
        self._rule(
            "LaunchFailed",
            "A node could not be launched, or refused to start",
            events.EventPattern(
                source=["aws.autoscaling"],
                detail_type=["EC2 Instance Launch Unsuccessful"],
                detail={"AutoScalingGroupName": [group_name(self._config, role) for role in ROLES]},
            ),
        )

    def _block_ending(self) -> None:
        self._rule(
            "BlockEnding",
            "The Capacity Block ends soon; nodes drain by the clock",
            events.EventPattern(source=["aws.ec2"], detail_type=list(_BLOCK_ENDING)),
        )

    def _metric(
        self, name: str, role: str, statistic: str = "Sum", period: cdk.Duration = _MINUTE
    ) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=METRICS_NAMESPACE,
            metric_name=name,
            dimensions_map={"Deployment": self._config.name, "Role": role},
            statistic=statistic,
            period=period,
        )

    def _burn(self, window: cdk.Duration) -> cloudwatch.MathExpression:
        """How many times faster than allowed first tokens come late; 0 without traffic."""
        return cloudwatch.MathExpression(
            expression=f"IF(all > 0, (1 - good / all) / {1 - _OBJECTIVE:.2f}, 0)",
            using_metrics={
                "good": self._metric("FirstTokensGood", "router", period=window),
                "all": self._metric("FirstTokensAll", "router", period=window),
            },
            period=window,
            label="TTFT budget burn",
        )

    def _alarms(self, balancer: str | None) -> list[cloudwatch.Alarm]:
        config = self._config
        found = []
        for role, count in (("prefill", config.prefill.count), ("decode", config.decode.count)):
            found += [
                self._alarm(
                    f"{role.title()}Down",
                    f"Fewer than {count} {role} engines answer. See docs/deploy.md, Alarms",
                    self._metric("EngineUp", role),
                    below=count,
                    missing=cloudwatch.TreatMissingData.BREACHING,
                    periods=5,
                ),
                self._alarm(
                    f"{role.title()}EfaMissing",
                    f"A {role} node has fewer EFA interfaces than its type",
                    self._metric("EfaInterfacesMissing", role, "Maximum"),
                    above=0,
                ),
                self._alarm(
                    f"{role.title()}TcpFallback",
                    f"KV of a {role} node moves slower than transfer_floor: TCP in place of EFA?",
                    self._metric("TcpFallback", role, "Maximum"),
                    above=0,
                ),
                self._alarm(
                    f"{role.title()}ExpiredLeases",
                    f"{role.title()} freed blocks that nobody fetched in time",
                    self._metric("ExpiredLeases", role),
                    above=100,
                ),
            ]
        found.append(
            self._alarm(
                "TtftBurn", "First tokens come late", self._burn(cdk.Duration.hours(1)), above=_FAST_BURN, periods=1
            )
        )
        if balancer is not None:
            found.append(
                self._alarm(
                    "Errors", "The routers answer 5xx", self._balancer(balancer, "HTTPCode_Target_5XX_Count"), above=10
                )
            )
        return found

    def _balancer(self, balancer: str, name: str) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace="AWS/ApplicationELB",
            metric_name=name,
            dimensions_map={"LoadBalancer": balancer},
            statistic="Sum",
            period=_MINUTE,
        )

    def _alarm(
        self, name: str, description: str, metric: cloudwatch.IMetric, *, above: float | None = None,
        below: float | None = None, periods: int = 3,
        missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING,
    ) -> cloudwatch.Alarm:  # fmt: skip
        comparison = cloudwatch.ComparisonOperator
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=f"{self._config.name}-{name}",
            alarm_description=description,
            metric=metric,
            threshold=above if above is not None else below or 0,
            comparison_operator=comparison.GREATER_THAN_THRESHOLD
            if above is not None
            else comparison.LESS_THAN_THRESHOLD,
            evaluation_periods=periods,
            treat_missing_data=missing,
        )
        alarm.add_alarm_action(actions.SnsAction(self.topic))
        alarm.add_ok_action(actions.SnsAction(self.topic))
        return alarm

    def _dashboard(self, balancer: str | None) -> None:
        pictures: Mapping[str, list[cloudwatch.IMetric]] = {
            "First tokens": [self._metric(name, "router") for name in ("FirstTokensAll", "FirstTokensGood")],
            "TTFT budget burn": [self._burn(cdk.Duration.minutes(5))],
            "Engines up": [self._metric("EngineUp", role) for role in ("prefill", "decode")],
            "EFA interfaces missing": [
                self._metric("EfaInterfacesMissing", role, "Maximum") for role in ("prefill", "decode")
            ],
            "KV over TCP": [self._metric("TcpFallback", role, "Maximum") for role in ("prefill", "decode")],
            "Leases that expired": [self._metric("ExpiredLeases", role) for role in ("prefill", "decode")],
        }
        if balancer is not None:
            pictures = {**pictures, "Answers 5xx": [self._balancer(balancer, "HTTPCode_Target_5XX_Count")]}
        board = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=self._config.name)
        board.add_widgets(cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(self.alarms), width=24, height=3))
        board.add_widgets(
            *(
                cloudwatch.GraphWidget(title=title, left=metrics, width=12, height=6)
                for title, metrics in pictures.items()
            )
        )
