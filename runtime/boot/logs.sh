#!/usr/bin/env bash
# Ships /var/log/kv-roundtrip to CloudWatch, with the agent that the image holds. A node serves without it.
set -euo pipefail

here=/opt/kv-roundtrip
control=/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl

if [ ! -x $control ]; then
    echo "logs: no CloudWatch agent in this image"
    exit 1
fi
"$here/.venv/bin/python" -m runtime.logs >/run/kv-roundtrip-logs.json
$control -a fetch-config -m ec2 -s -c file:/run/kv-roundtrip-logs.json
