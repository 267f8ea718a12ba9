"""What nodes need before they first boot: every tunable in Parameter Store, and the groups that their logs go to.

Log groups are not in the nodes' own stacks: a failed first deployment takes those back, and with them what would tell why.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from runtime.parameters import NO_TIME
from stacks.config import Config
from stacks.identity import log_group_name
from stacks.tunables import Tunables
from stacks.userdata import prefix

ROLES = ("prefill", "decode", "router")
_RETENTION = {
    1: "ONE_DAY", 3: "THREE_DAYS", 5: "FIVE_DAYS", 7: "ONE_WEEK", 14: "TWO_WEEKS", 30: "ONE_MONTH", 60: "TWO_MONTHS",
    90: "THREE_MONTHS", 180: "SIX_MONTHS", 365: "ONE_YEAR",
}  # fmt: skip


class ParametersStack(cdk.Stack):
    def __init__(self, scope: Construct, construct_id: str, *, config: Config, env: cdk.Environment) -> None:
        super().__init__(scope, construct_id, env=env, description="KV Roundtrip: tunables, log groups")
        first = {"capacity_block_end": config.capacity.ends_at or NO_TIME, **config.tunables}
        if not config.machine.efa:
            # There is no EFA to fall back from.
            first = {"transfer_floor": "0", **first}
        self.tunables = Tunables(self, "Tunables", prefix=prefix(config), values=first)
        cdk.CfnOutput(
            self, "TunablesPrefix", value=prefix(config), description="Path of the tunables; see docs/tune.md"
        )
        self._log_groups(config)

    def _log_groups(self, config: Config) -> None:
        days = logs.RetentionDays[_RETENTION[config.log_retention_days]]
        for role in ROLES:
            logs.LogGroup(
                self,
                f"{role.title()}Logs",
                log_group_name=log_group_name(config, role),
                retention=days,
                removal_policy=cdk.RemovalPolicy.DESTROY,
            )
