#!/usr/bin/env bash
# scripts/destroy.sh PROFILE [--yes] [-c NAME=VALUE]...: takes a profile's deployment out of the AWS account of the environment.
# Lists what goes and what stays, asks y/N, destroys the stacks in the order that their dependencies ask for.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { echo "usage: scripts/destroy.sh PROFILE [--yes] [-c NAME=VALUE]..." >&2; exit 2; }

[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || usage
# Without pinned images the app has fewer stacks; all of them are to go, whatever is pinned now.
none=ami-00000000000000000
profile=$1 yes=() context=(-c "profile=$1" -c "images.engine=$none" -c "images.router=$none")
shift
while [ $# -gt 0 ]; do
    case $1 in
        --yes) yes=(--yes); shift ;;
        -c) [ $# -ge 2 ] || usage; context+=(-c "$2"); shift 2 ;;
        *) usage ;;
    esac
done

assembly=cdk.out/$profile-destroy
scripts/setup.sh cloud
scripts/cdk.sh synth --all --quiet --output "$assembly" "${context[@]}"
code=0
.venv/bin/python -m scripts.teardown --assembly "$assembly" "${yes[@]}" || code=$?
# 4: there is nothing to destroy.
[ $code -ne 4 ] || exit 0
[ $code -eq 0 ] || exit $code
scripts/cdk.sh destroy --all --force --app "$assembly"
