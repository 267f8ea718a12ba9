"""Every tunable as a parameter in Parameter Store, with the configuration's first values."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from runtime.parameters import NO_TIME
from stacks.config import Config
from stacks.tunables import Tunables
from stacks.userdata import prefix


class ParametersStack(cdk.Stack):
    def __init__(self, scope: Construct, construct_id: str, *, config: Config, env: cdk.Environment) -> None:
        super().__init__(scope, construct_id, env=env, description="KV Roundtrip: tunables")
        first = {"capacity_block_end": config.capacity.ends_at or NO_TIME, **config.tunables}
        if not config.machine.efa:
            # There is no EFA to fall back from.
            first = {"transfer_floor": "0", **first}
        self.tunables = Tunables(self, "Tunables", prefix=prefix(config), values=first)
        cdk.CfnOutput(
            self, "TunablesPrefix", value=prefix(config), description="Path of the tunables; see docs/tune.md"
        )
