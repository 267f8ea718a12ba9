"""What holds for every template: same bytes twice, no secret, all tagged; and the stacks that have no file of their own here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from router.metrics import SECONDS
from runtime.parameters import BY_NAME
from stacks.identity import METRICS_NAMESPACE, SESSION_ACTIONS
from stacks.parameters import ROLES
from tests.cloud.synth import PINNED, PROFILES, ROOT, config, context, of_profile, of_type, one, synthesise, text

TOKEN = "tok-placeholder-123"
LONGEST_SYNTHESIS_S = 30.0
# Have no Tags property in CloudFormation.
UNTAGGED = {
    "AWS::EC2::LaunchTemplate", "AWS::EC2::Route", "AWS::EC2::SubnetRouteTableAssociation", "AWS::EC2::VPCGatewayAttachment",
    "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress", "AWS::IAM::Policy", "AWS::IAM::InstanceProfile",
    "AWS::ElasticLoadBalancingV2::Listener", "AWS::CDK::Metadata", "AWS::SNS::TopicPolicy", "AWS::SNS::Subscription",
    "AWS::CloudWatch::Dashboard", "AWS::Events::Rule", "AWS::EC2::PlacementGroup", "AWS::WAFv2::WebACLAssociation",
    "AWS::Route53::RecordSet",
}  # fmt: skip


def run_app(profile: str, folder: Path) -> float:
    """Seconds of a core that `python app.py` takes for a profile, as the CDK's command line starts it, with no credentials to be
    found. Not of the clock: other tests run beside this one."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {
        "CDK_CONTEXT_JSON": json.dumps({**context(), "profile": profile, **PINNED, "hub-token": TOKEN}),
        "CDK_OUTDIR": str(folder),
        "HUB_TOKEN": TOKEN,
        "HF_TOKEN": TOKEN,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(folder.parent),
    }
    log = folder.parent / f"{folder.name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=environ, stdout=errors, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    said = log.read_text()
    assert process.returncode == 0, said
    assert "deprecated" not in said.lower(), said
    return usage.ru_utime + usage.ru_stime


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("profile", PROFILES)
def test_synthesis_is_quick_needs_no_credentials_and_gives_the_same_bytes_twice(profile: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as side_by_side:
        took = list(side_by_side.map(lambda name: run_app(profile, tmp_path / name), ("first", "second")))
    assert min(took) < LONGEST_SYNTHESIS_S
    first, second = files(tmp_path / "first"), files(tmp_path / "second")
    assert set(first) == set(second)
    assert [name for name in first if name.endswith(".template.json") and first[name] != second[name]] == []
    # REP-31: what stood in environment and context is in nothing that would leave this machine.
    assert [name for name, content in first.items() if TOKEN.encode() in content] == []
    lint = subprocess.run(
        [Path(sys.executable).with_name("cfn-lint"), "--regions", config(profile).region, "--format", "parseable", *map(str, (tmp_path / "first").glob("*.template.json"))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert lint.returncode == 0, lint.stdout[:3000]


def test_rep_31_a_hub_token_is_a_name_in_the_template_and_read_by_one_narrow_statement() -> None:
    templates = synthesise(config("p5en", model__hub_token_parameter="/secrets/hub"))
    whole = json.dumps(templates)
    assert "resolve:ssm-secure" not in whole
    assert "resolve:secretsmanager" not in whole
    for role in ("Prefill", "Decode"):
        assert "/secrets/hub" in text(
            one(templates["engines"], "EC2::LaunchTemplate", role)["LaunchTemplateData"]["UserData"]
        )
        statements = one(templates["engines"], "IAM::Policy", role)["PolicyDocument"]["Statement"]
        reads = [s for s in statements if s["Action"] == "ssm:GetParameter"]
        assert [text(s["Resource"]).endswith(":parameter/secrets/hub") for s in reads] == [True]
    router = one(templates["routing"], "IAM::Policy", "Routers")["PolicyDocument"]["Statement"]
    assert not any(s["Action"] == "ssm:GetParameter" for s in router)


def test_nodes_may_do_little() -> None:
    for kind in ("engines", "routing"):
        for policy in of_type(of_profile("p5en")[kind], "IAM::Policy").values():
            for statement in policy["PolicyDocument"]["Statement"]:
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                assert not any("*" in action for action in actions)
                if statement["Resource"] == "*":
                    reads = all(re.match(r"\w+:(Describe|List|Get)", a) for a in set(actions) - set(SESSION_ACTIONS))
                    assert reads or "Condition" in statement, statement


@pytest.mark.parametrize("profile", PROFILES)
def test_everything_that_can_have_tags_has_the_project_s(profile: str) -> None:
    for template in of_profile(profile).values():
        for name, resource in template["Resources"].items():
            if resource["Type"] in UNTAGGED:
                continue
            tags: Any = resource["Properties"].get("Tags") or resource["Properties"].get("AutoScalingGroupTags")
            assert tags, f"{name} ({resource['Type']})"
            found = tags if isinstance(tags, dict) else {tag["Key"]: tag["Value"] for tag in tags}
            assert found.get("project") == "kv-roundtrip", name


def test_balancer_is_fit_for_long_streams() -> None:
    template = of_profile("p5en")["routing"]
    balancer = one(template, "ElasticLoadBalancingV2::LoadBalancer")
    # Another scheme or port needs another one, which CloudFormation makes first: "already exists", had they a name.
    assert "Name" not in balancer
    assert "Name" not in one(template, "ElasticLoadBalancingV2::TargetGroup")
    attributes = {a["Key"]: a["Value"] for a in balancer["LoadBalancerAttributes"]}
    assert attributes["idle_timeout.timeout_seconds"] == "1200"
    assert attributes["routing.http.drop_invalid_header_fields.enabled"] == "true"
    assert balancer["Scheme"] == "internal"
    target = one(template, "ElasticLoadBalancingV2::TargetGroup")
    behaviour = {a["Key"]: a["Value"] for a in target["TargetGroupAttributes"]}
    assert behaviour["load_balancing.algorithm.type"] == "least_outstanding_requests"
    assert behaviour["stickiness.enabled"] == "false"
    assert behaviour["deregistration_delay.timeout_seconds"] == "3600"
    assert target["HealthCheckPath"] == "/ready"


def test_router_keeps_connections_longer_than_the_balancer_can() -> None:
    from runtime.router import KEEP_ALIVE_S
    from stacks.config import Edge

    longest = next(m.le for m in Edge.model_fields["longest_silence_s"].metadata if hasattr(m, "le"))
    assert longest < KEEP_ALIVE_S


def test_tls_and_firewall() -> None:
    certificate = "arn:aws:acm:us-east-2:123456789012:certificate/0123-abcd"
    template = synthesise(config("p5en", edge__certificate_arn=certificate, edge__waf=True))["routing"]
    listener = one(template, "ElasticLoadBalancingV2::Listener")
    assert (listener["Port"], listener["Protocol"]) == (443, "HTTPS")
    assert "TLS13" in listener["SslPolicy"]
    rules = one(template, "WAFv2::WebACL")["Rules"]
    common = next(r for r in rules if r["Name"] == "common")["Statement"]["ManagedRuleGroupStatement"]
    counted = {o["Name"] for o in common["RuleActionOverrides"] if "Count" in o["ActionToUse"]}
    assert {"SizeRestrictions_BODY", "CrossSiteScripting_BODY"} <= counted
    assert one(template, "WAFv2::WebACLAssociation")


@pytest.mark.parametrize(("count", "stores"), [(1, 0), (2, 1)])
def test_several_routers_share_a_store(count: int, stores: int) -> None:
    template = synthesise(config("cpu", router__count=count))["routing"]
    assert len(of_type(template, "ElastiCache::ReplicationGroup")) == stores
    routers = one(template, "AutoScaling::AutoScalingGroup")
    assert len(routers["VPCZoneIdentifier"]) == 2


def test_without_pinned_images_only_what_comes_before_them_is_made() -> None:
    assert set(synthesise(config("p5en", images__engine=None))) == {
        "network",
        "images",
        "parameters",
        "observability",
    }


def test_alarms_are_about_metrics_that_agents_publish() -> None:
    source = "".join((ROOT / "runtime" / name).read_text() for name in ("agent.py", "publish.py"))
    template = of_profile("p5en")["observability"]
    names = set()
    for alarm in of_type(template, "CloudWatch::Alarm").values():
        metrics = [alarm, *(m["MetricStat"]["Metric"] for m in alarm.get("Metrics", []) if "MetricStat" in m)]
        names |= {m["MetricName"] for m in metrics if m.get("Namespace") == METRICS_NAMESPACE}
        assert alarm["AlarmActions"]
    assert names == {
        "EngineUp", "EfaInterfacesMissing", "TcpFallback", "ExpiredLeases", "FirstTokensGood", "FirstTokensAll",
    }  # fmt: skip
    for name in (*names, METRICS_NAMESPACE):
        assert f'"{name}"' in source, name


def test_ttft_target_is_a_bound_of_the_routers_histogram() -> None:
    assert BY_NAME["ttft_target"].default in SECONDS


def test_failed_launches_and_an_ending_block_reach_the_topic() -> None:
    end = {"capacity__kind": "block", "capacity__id": "cr-0123456789abcdef0", "capacity__ends_at": "2027-03-01T11:30Z"}
    template = synthesise(config("p5en", alarm_email="ops@example.com", **end))["observability"]
    rules = [rule["EventPattern"] for rule in of_type(template, "Events::Rule").values()]
    assert {"EC2 Instance Launch Unsuccessful"} in [set(rule["detail-type"]) for rule in rules]
    assert sorted(len(rule["detail-type"]) for rule in rules) == [1, 3]
    assert one(template, "SNS::Subscription")["Endpoint"] == "ops@example.com"


def test_alarms_and_rules_may_publish_to_the_encrypted_topic() -> None:
    template = of_profile("p5en")["observability"]
    statements = one(template, "SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    # A policy replaces SNS's default one, which lets the account's own alarms in.
    publishers = {
        s["Principal"]["Service"] for s in statements if s["Effect"] == "Allow" and s["Action"] == "sns:Publish"
    }
    assert publishers == {"cloudwatch.amazonaws.com", "events.amazonaws.com"}
    users: set[str] = set()
    for statement in one(template, "KMS::Key")["KeyPolicy"]["Statement"]:
        service = statement["Principal"].get("Service", [])
        if {"kms:Decrypt", "kms:GenerateDataKey*"} <= set(statement["Action"]):
            users |= {service} if isinstance(service, str) else set(service)
    assert users == publishers


def test_log_groups_end() -> None:
    # In the stack that nodes wait for: what a failing first boot says must have a place to go.
    groups = of_type(of_profile("cpu")["parameters"], "Logs::LogGroup").values()
    assert {group["LogGroupName"] for group in groups} == {f"/kv-roundtrip/{role}" for role in ROLES}
    assert {group["RetentionInDays"] for group in groups} == {7}


def test_image_pipelines_build_from_this_checkout_and_publish_the_id() -> None:
    bases = {"cpu": "canonical", "p5en": "nvidia", "trn2": "neuron"}
    for profile, base in bases.items():
        template = of_profile(profile)["images"]
        recipes = [r["ParentImage"] for r in of_type(template, "ImageBuilder::ImageRecipe").values()]
        assert sum(base in parent for parent in recipes) >= 1
        published = [
            entry["ParameterName"]
            for d in of_type(template, "ImageBuilder::DistributionConfiguration").values()
            for entry in d["Distributions"][0]["SsmParameterConfigurations"]
        ]
        assert sorted(published) == ["/kv-roundtrip-images/engine", "/kv-roundtrip-images/router"]
        assert not set(published) & {
            p["Name"] for p in of_type(of_profile(profile)["parameters"], "SSM::Parameter").values()
        }
        for pipeline in of_type(template, "ImageBuilder::ImagePipeline").values():
            assert pipeline["ImageTestsConfiguration"]["ImageTestsEnabled"] is True
        for component in of_type(template, "ImageBuilder::Component").values():
            document = text(component["Data"])
            assert "install.sh" in document
            assert "name: test" in document
