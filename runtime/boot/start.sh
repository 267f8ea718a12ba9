#!/usr/bin/env bash
# start.sh ROLE: the first boot of a node, called by its user data. Starts what the role needs and waits until it serves.
# Whatever fails gives the node up at once: an accelerator node that can't serve costs as much as one that can.
set -Eeuo pipefail

here=/opt/kv-roundtrip
role=${1:-}

say() { echo "kv-roundtrip: $1"; }

give_up() {
    local status=$?
    trap - ERR
    say "$role node gives up (status $status); its reasons are above and in 'journalctl -u \"kv-roundtrip-*\"'"
    "$here/.venv/bin/python" -m runtime.lifecycle abandon --reason "start.sh failed with status $status" || true
    exit $((status == 0 ? 1 : status))
}
trap give_up ERR

case $role in
    prefill | decode) service=kv-roundtrip-engine ;;
    router) service=kv-roundtrip-router ;;
    *)
        say "no role is called '$role'. hint: prefill, decode or router"
        false
        ;;
esac

cd "$here"
"$here/runtime/boot/logs.sh" || say "logs stay on this node: see the lines above"
say "starting $service"
# Enabled first: after a reboot, when user data does not run again, systemd starts both by itself.
systemctl enable "$service.service" kv-roundtrip-agent.service
systemctl start "$service.service"
systemctl start kv-roundtrip-agent.service
systemctl start kv-roundtrip-ready.service
say "$role node serves"
