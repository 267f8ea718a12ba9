#!/usr/bin/env bash
# start.sh ROLE: the first boot of a node, called by its user data. Starts what the role needs and waits until it serves.
# Whatever fails gives the node up at once: an accelerator node that can't serve costs as much as one that can.
set -Eeuo pipefail

here=/opt/kv-roundtrip
log=/var/log/kv-roundtrip/boot.log
role=${1:-}

# A full disk is a matter of what needs it, not of this.
say() { echo "kv-roundtrip: $1" | tee -a "$log" || true; }

give_up() {
    local status=$?
    trap - ERR
    set +e
    say "$role node gives up (status $status); its reasons are above and in 'journalctl -u \"kv-roundtrip-*\"'"
    # Sent away with the other logs: the machine is gone soon.
    journalctl --boot --no-pager --lines 500 --output short-iso --unit 'kv-roundtrip-*' >>"$log" 2>&1
    cd "$here"
    "$here/.venv/bin/python" -m runtime.lifecycle abandon --reason "start.sh failed with status $status" 2>&1 | tee -a "$log"
    # It exits with 1; what the shell could not start is above that.
    if [ "${PIPESTATUS[0]}" -gt 1 ]; then
        say "Auto Scaling was not told, and waits until its launch hook's time is over. hint: build the image again"
    fi
    exit $((status == 0 ? 1 : status))
}
trap give_up ERR

mkdir -p "${log%/*}"
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
# Enabled first: after a reboot, when user data does not run again, systemd starts all by itself.
systemctl enable "$service.service" kv-roundtrip-agent.service kv-roundtrip-ready.service
systemctl start "$service.service"
systemctl start kv-roundtrip-agent.service
systemctl start kv-roundtrip-ready.service
say "$role node serves"
