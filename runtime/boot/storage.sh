#!/usr/bin/env bash
# A place for weights at /var/lib/kv-roundtrip: all instance-store disks as one RAID 0 where a node has them, else the root volume.
# What is on it is a copy: it outlives a reboot, is lost when the instance stops, and then is loaded again.
set -euo pipefail

place=${KVR_STATE:-/var/lib/kv-roundtrip}
dlami=/opt/dlami/nvme
array=/dev/md/kv-roundtrip
# Of XFS, twelve characters at most.
label=kv-roundtrip

say() { echo "storage: $1"; }

own() {
    install -d -m 0755 "$place"
    # Images have this user; where tests run there is none.
    if id kvr >/dev/null 2>&1; then chown kvr: "$place"; fi
}

# Instance-store disks that nothing uses yet.
free_disks() {
    lsblk --nodeps --noheadings --paths --output NAME,MODEL | awk '/Amazon EC2 NVMe Instance Storage/ { print $1 }' |
        while read -r disk; do
            [ -n "$(lsblk --noheadings --output MOUNTPOINT,FSTYPE "$disk" | tr -d ' \n')" ] || echo "$disk"
        done
}

# The file system that an earlier boot of this instance made, if any.
made_before() {
    # Udev does both, but maybe later than this.
    udevadm settle --timeout=30 || true
    mdadm --assemble --scan --quiet || true
    blkid --label "$label" || true
}

install -d -m 0755 "$place"
if mountpoint -q "$place"; then
    say "$place is mounted already"
elif mountpoint -q "$dlami"; then
    # AWS's deep learning images have made the array and mounted it.
    install -d -m 0755 "$dlami/kv-roundtrip"
    mount --bind "$dlami/kv-roundtrip" "$place"
    say "$place is on $dlami"
elif device=$(made_before) && [ -n "$device" ]; then
    mount -o noatime "$device" "$place"
    say "$place is on $device, as before"
else
    mapfile -t disks < <(free_disks)
    if [ ${#disks[@]} -eq 0 ]; then
        say "no instance store; $place stays on the root volume"
    else
        device=${disks[0]}
        if [ ${#disks[@]} -gt 1 ]; then
            mdadm --create "$array" --run --level=0 --raid-devices=${#disks[@]} "${disks[@]}"
            device=$array
        fi
        mkfs.xfs -f -q -L "$label" "$device"
        mount -o noatime "$device" "$place"
        say "$place is on ${#disks[@]} instance-store disks"
    fi
fi
own
