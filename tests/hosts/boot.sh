#!/usr/bin/env bash
# boot.sh NAME ROOT ENVIRONMENT [DISK]: becomes the first process, systemd, of a host that shares nothing with this machine but files it reads.
# Called in network, mount, process, hostname and message namespaces of its own; what it writes goes to memory and ends with it.
set -euo pipefail
if [ $$ -ne 1 ]; then
    echo "boot.sh: not the first process of a namespace; it would take this machine apart. hint: tests/hosts/host.py calls it" >&2
    exit 2
fi
name=$1 root=$2 environment=$3 disk=${4:-/dev/null}
# What the machine had on its disks before this boot, a tar file; opened before its place is hidden.
exec 3<"$disk"

mount --make-rprivate /
mount -t proc proc /proc
hostname "$name"

# A cgroup of its own, which systemd then takes for the whole tree.
mount -t cgroup2 none /mnt
mkdir -p "/mnt/$name"
echo $$ >"/mnt/$name/cgroup.procs"
umount /mnt

copy_of() {
    mkdir "/run/copy"
    cp -a "$1/." /run/copy/
    mount -t tmpfs -o mode=755 tmpfs "$1"
    cp -a /run/copy/. "$1"
    rm -r /run/copy
}
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/lock
copy_of /etc
# The image: this checkout where install.sh puts it. First, as what follows may hide where it lies.
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir /opt/kv-roundtrip
mount --bind "$root" /opt/kv-roundtrip
root=/opt/kv-roundtrip
for place in /var/lib /var/log /var/tmp /var/cache /tmp; do
    mount -t tmpfs -o mode=755 tmpfs $place
done
chmod 1777 /tmp /var/tmp

# Its user, its units.
useradd --system --home-dir /var/lib/kv-roundtrip --shell /usr/sbin/nologin kvr
install -d -o kvr -m 0755 /var/lib/kv-roundtrip /var/log/kv-roundtrip
rm -rf /etc/systemd/system/*
install -m 0644 "$root"/runtime/units/*.service /etc/systemd/system/

# An interpreter below /root or /home, as pyenv's, is one that the units' user can't reach. The image has it in /opt/python.
interpreter=$(readlink -f "$root/.venv/bin/python")
home=/$(echo "$interpreter" | cut -d/ -f2)
if [ "$home" = /root ] || [ "$home" = /home ]; then
    version=$(dirname "$(dirname "$interpreter")")
    mkdir /run/interpreter
    mount --bind "$version" /run/interpreter
    mount -t tmpfs -o mode=755 tmpfs "$home"
    mkdir -p "$version"
    mount --bind /run/interpreter "$version"
    for unit in engine router; do
        mkdir "/etc/systemd/system/kv-roundtrip-$unit.service.d"
        printf '[Service]\nProtectHome=no\n' >"/etc/systemd/system/kv-roundtrip-$unit.service.d/interpreter.conf"
    done
fi

# What an instance's role and VPC endpoints give: credentials, and where AWS is.
printf '[Manager]\nDefaultEnvironment=%s\n' "$environment" >/etc/systemd/system.conf
# The kernel is shared: nothing of this host may set it.
for unit in systemd-sysctl.service systemd-modules-load.service systemd-remount-fs.service systemd-udevd.service \
    systemd-udev-trigger.service systemd-binfmt.service systemd-update-utmp.service dev-hugepages.mount dev-mqueue.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount sys-kernel-config.mount \
    proc-sys-fs-binfmt_misc.automount systemd-random-seed.service apt-daily.timer; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
# The network is there before systemd is.
ln -sf /dev/null /etc/systemd/system/systemd-networkd-wait-online.service

[ "$disk" = /dev/null ] || tar -C / -x <&3
exec 3<&-

! mountpoint -q /sys/fs/cgroup || umount -R /sys/fs/cgroup
export container=kv-roundtrip
exec unshare --cgroup bash -c '
    mount -t cgroup2 none /sys/fs/cgroup
    exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=no'
