"""The CDK entry: `cdk deploy`, or `make synth` for the templates alone."""

from __future__ import annotations

import aws_cdk as cdk

from stacks.deployment import DEFAULT_PREFIX, Deployment

app = cdk.App()
Deployment(app, "kv-roundtrip", prefix=app.node.try_get_context("prefix") or DEFAULT_PREFIX)
app.synth()
