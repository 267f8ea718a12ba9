#!/usr/bin/env bash
# scripts/deploy.sh PROFILE [--yes] [-c NAME=VALUE]...: deploys a profile of cdk.json into the AWS account of the environment.
# Synthesises, asks the account whether it can succeed, shows the cost, asks y/N, deploys. docs/deploy.md has the whole way.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { echo "usage: scripts/deploy.sh PROFILE [--yes] [-c NAME=VALUE]..." >&2; exit 2; }

[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || usage
profile=$1 yes=() context=(-c "profile=$1")
shift
while [ $# -gt 0 ]; do
    case $1 in
        --yes) yes=(--yes); shift ;;
        -c) [ $# -ge 2 ] || usage; context+=(-c "$2"); shift 2 ;;
        *) usage ;;
    esac
done

assembly=cdk.out/$profile
scripts/setup.sh cloud
scripts/cdk.sh synth --all --quiet --output "$assembly" "${context[@]}"
.venv/bin/python -m scripts.preflight_aws --assembly "$assembly" "${yes[@]}"
# What was checked is what is deployed: the assembly, not another synthesis.
scripts/cdk.sh deploy --all --require-approval never --app "$assembly" --outputs-file "$assembly/outputs.json"
