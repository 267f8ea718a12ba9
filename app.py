"""The CDK entry: `cdk deploy --all -c profile=cpu`, or `make synth` for the templates alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import aws_cdk as cdk

from stacks.config import ConfigError
from stacks.deployment import Deployment, configuration
from stacks.nag import add_checks
from stacks.plan import plan


def main() -> None:
    app = cdk.App()
    try:
        config = configuration(app.node.get_all_context())
    except ConfigError as error:
        sys.exit(str(error))
    deployment = Deployment(app, config)
    if not config.is_pinned:
        print(
            "No images are pinned, so engines and routing are left out. hint: deploy the images stack, run its pipelines, "
            "then scripts/pin_images.py; docs/deploy.md says how",
            file=sys.stderr,
        )
    add_checks(app, deployment)
    app.synth()
    text = json.dumps(plan(config, [stack.stack_name for stack in deployment.stacks]), indent=1)
    Path(app.outdir, "plan.json").write_text(text)


if __name__ == "__main__":
    main()
