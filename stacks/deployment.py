"""The stack that joins the parts."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from stacks.tunables import Tunables

DEFAULT_PREFIX = "/kv-roundtrip"


class Deployment(cdk.Stack):
    """Everything one endpoint needs. Bound to no account or region, so that it synthesises without credentials."""

    def __init__(self, scope: Construct, construct_id: str, *, prefix: str = DEFAULT_PREFIX) -> None:
        super().__init__(scope, construct_id, description="KV Roundtrip: gives KV caches back from decode to prefill")
        cdk.Tags.of(self).add("project", "kv-roundtrip")
        self.tunables = Tunables(self, "Tunables", prefix=prefix)
        cdk.CfnOutput(self, "TunablesPrefix", value=prefix, description="Path of the tunables in SSM Parameter Store")
