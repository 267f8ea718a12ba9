#!/usr/bin/env bash
# install.sh cuda|neuron|cpu|router: makes an image out of /opt/kv-roundtrip, its lock files and Ubuntu 24.04. Image Builder runs it.
set -euo pipefail

kind=${1:-}
here=/opt/kv-roundtrip
uv=/opt/uv/bin/uv

case $kind in
    cuda) extras=(cuda) ;;
    neuron) extras=(neuron) ;;
    cpu) extras=(local node) ;;
    router) extras=(router node) ;;
    *)
        echo "install: no image is called '$kind'. hint: cuda, neuron, cpu or router" >&2
        exit 2
        ;;
esac

cd "$here"
# Services run as a user of their own, who has to read all of this; Image Builder's shell promises neither umask nor HOME.
umask 022
export HOME=${HOME:-/root}
chmod -R a+rX "$here"

# A machine that has just booted may still install something itself, and apt does not wait for others unless it is told to.
# Nor may a node change its kernel, driver or libraries later, one half of a pair before the other: a new image does that.
systemctl disable --now apt-daily.timer apt-daily-upgrade.timer || true
cloud-init status --wait || true
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l
apt() { apt-get -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confold "$@"; }
for try in 1 2 3 4 5; do
    # Its own lock is one that apt never waits for.
    apt update && break
    [ "$try" -lt 5 ] || { echo "install: package lists could not be fetched" >&2; exit 1; }
    sleep 20
done
# libhwloc15: NIXL's LIBFABRIC plugin takes it from the system.
apt install -y --no-install-recommends ca-certificates curl python3-venv libnuma1 libhwloc15 mdadm xfsprogs pciutils chrony
# Amazon's time service needs no way out; the servers that Ubuntu asks are behind a port that nodes may not use.
echo "server 169.254.169.123 prefer iburst minpoll 4 maxpoll 4" >/etc/chrony/conf.d/amazon.conf
systemctl enable chrony

# Our lock files are for one Python; Ubuntu 24.04 has a newer one.
python3 -m venv /opt/uv
/opt/uv/bin/pip install --quiet --require-hashes --no-deps -r locks/setup.txt
if [ "$kind" = neuron ]; then
    # vLLM for Neuron is on no package index: AWS's image holds it in an environment of its own, which ours goes into; the newest
    # where there are several.
    venv=$(printf '%s\n' /opt/aws_neuronx_venv_*vllm* | sort -V | tail -n 1)
    [ -x "$venv/bin/python" ] || { echo "install: this base image has no environment with vLLM" >&2; exit 1; }
    ln -sfn "$venv" "$here/.venv"
    $uv pip install --python .venv/bin/python --no-deps --require-hashes -r locks/neuron.txt
    $uv pip install --python .venv/bin/python --no-deps --editable .
else
    # For `find` as well: it looks nowhere else.
    export UV_PYTHON_INSTALL_DIR=/opt/python
    $uv python install 3.11
    PYTHON=$($uv python find --no-project --managed-python 3.11)
    export PYTHON
    # Through bash: what unpacked this folder has made no file executable.
    bash scripts/setup.sh "${extras[@]}"
    # The services' user may not write there, so each start would compile all of it. Some packages hold templates that do not compile.
    .venv/bin/python -m compileall -q -j 0 .venv/lib connector router runtime >/dev/null || true
fi

id kvr >/dev/null 2>&1 || useradd --system --home-dir /var/lib/kv-roundtrip --shell /usr/sbin/nologin kvr
install -d -o kvr -g kvr -m 0755 /var/lib/kv-roundtrip /var/log/kv-roundtrip
install -m 0644 runtime/units/*.service /etc/systemd/system/
systemctl daemon-reload
chmod 0755 runtime/boot/*.sh

agent=https://amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/amd64/latest/amazon-cloudwatch-agent.deb
curl -fsSL --retry 5 -o /tmp/agent.deb "$agent"
apt install -y /tmp/agent.deb
rm -rf /tmp/agent.deb /root/.cache
apt clean
