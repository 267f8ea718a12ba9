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
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends python3-venv libnuma1 mdadm xfsprogs pciutils chrony

# Our lock files are for one Python; Ubuntu 24.04 has a newer one.
python3 -m venv /opt/uv
/opt/uv/bin/pip install --quiet --require-hashes --no-deps -r locks/setup.txt
if [ "$kind" = neuron ]; then
    # vLLM for Neuron is on no package index: AWS's image holds it in an environment of its own, which ours goes into.
    venvs=(/opt/aws_neuronx_venv_*vllm*)
    [ -x "${venvs[0]}/bin/python" ] || { echo "install: this base image has no environment with vLLM" >&2; exit 1; }
    ln -sfn "${venvs[0]}" "$here/.venv"
    $uv pip install --python .venv/bin/python --no-deps --require-hashes -r locks/neuron.txt
    $uv pip install --python .venv/bin/python --no-deps --editable .
else
    $uv python install --install-dir /opt/python 3.11
    PYTHON=$($uv python find --no-project --managed-python 3.11) scripts/setup.sh "${extras[@]}"
fi

id kvr >/dev/null 2>&1 || useradd --system --home-dir /var/lib/kv-roundtrip --shell /usr/sbin/nologin kvr
install -d -o kvr -g kvr -m 0755 /var/lib/kv-roundtrip /var/log/kv-roundtrip
install -m 0644 runtime/units/*.service /etc/systemd/system/
systemctl daemon-reload
chmod 0755 runtime/boot/*.sh

agent=https://amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/amd64/latest/amazon-cloudwatch-agent.deb
curl -fsSL -o /tmp/agent.deb "$agent" && dpkg -i /tmp/agent.deb && rm /tmp/agent.deb
