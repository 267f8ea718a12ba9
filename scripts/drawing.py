"""`python -m scripts.drawing FOLDER`: draws the deployed system into docs/architecture.md from the templates in FOLDER.

Boxes are resources, arrows what security groups let through. A test fails when the page and the templates differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- drawing: python -m scripts.drawing -->", "<!-- end of drawing -->"

Template = Mapping[str, Any]
Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Box:
    id: str
    label: str
    place: str
    groups: tuple[str, ...]
    """Logical ids of its security groups."""


class Deployment:
    """The templates of one deployment, with references from stack to stack followed."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        self._templates = templates
        self._exports = {
            output["Export"]["Name"]: output["Value"]
            for template in templates.values()
            for output in template.get("Outputs", {}).values()
            if "Export" in output
        }

    def of(self, kind: str) -> Iterator[tuple[str, Properties]]:
        for template in self._templates.values():
            for name, resource in template["Resources"].items():
                if resource["Type"] == f"AWS::{kind}":
                    yield name, resource.get("Properties", {})

    def target(self, value: Any) -> str:
        """The logical id that a reference is to; a plain text is itself."""
        if isinstance(value, str):
            return value
        if "Fn::ImportValue" in value:
            return self.target(self._exports[value["Fn::ImportValue"]])
        return str(value.get("Ref") or value["Fn::GetAtt"][0])

    def targets(self, values: Sequence[Any]) -> tuple[str, ...]:
        return tuple(self.target(value) for value in values)


def boxes(deployment: Deployment) -> list[Box]:
    found = []
    for name, balancer in deployment.of("ElasticLoadBalancingV2::LoadBalancer"):
        label = f"Application Load Balancer, {balancer['Scheme']}"
        found.append(Box(name, label, "edge, 2 zones", deployment.targets(balancer["SecurityGroups"])))
    templates = dict(deployment.of("EC2::LaunchTemplate"))
    for name, group in deployment.of("AutoScaling::AutoScalingGroup"):
        template = templates[deployment.target(group["LaunchTemplate"]["LaunchTemplateId"])]["LaunchTemplateData"]
        found.append(_nodes(deployment, name, group, template))
    for name, store in deployment.of("ElastiCache::ReplicationGroup"):
        label = f"{store['Engine'].title()}, {store['NumCacheClusters']} nodes: handles of several routers"
        found.append(Box(name, label, "router, 2 zones", deployment.targets(store["SecurityGroupIds"])))
    endpoints = [e for _, e in deployment.of("EC2::VPCEndpoint") if e.get("VpcEndpointType") == "Interface"]
    if endpoints:
        label = f"{len(endpoints)} interface endpoints of AWS services"
        found.append(Box("endpoints", label, "engine, 1 zone", deployment.targets(endpoints[0]["SecurityGroupIds"])))
    return found


def _nodes(deployment: Deployment, name: str, group: Properties, template: Properties) -> Box:
    role = group["AutoScalingGroupName"].rpartition("-")[2]
    interfaces = template["NetworkInterfaces"]
    efa = sum("efa" in interface["InterfaceType"] for interface in interfaces)
    label = f"{role}: {group['DesiredCapacity']} x {template['InstanceType']}"
    if efa:
        label += f"<br/>{efa} EFA and {len(interfaces) - efa} ENA interface"
    if "PlacementGroup" in group:
        label += "<br/>cluster placement group"
    place = "engine, 1 zone" if len(group["VPCZoneIdentifier"]) == 1 else "router, 2 zones"
    return Box(name, label, place, deployment.targets(interfaces[0]["Groups"]))


def arrows(deployment: Deployment, drawn: Sequence[Box]) -> list[str]:
    lines = []
    for name, group in deployment.of("EC2::SecurityGroup"):
        for rule in group.get("SecurityGroupIngress", []):
            for box in drawn:
                if name in box.groups:
                    lines.append(f'clients(["clients in {rule["CidrIp"]}"]) -- {_port(rule)} --> {box.id}')
    for _, rule in deployment.of("EC2::SecurityGroupIngress"):
        source, sink = deployment.target(rule["SourceSecurityGroupId"]), deployment.target(rule["GroupId"])
        sources = [box for box in drawn if source in box.groups]
        sinks = [box for box in drawn if sink in box.groups]
        if source == sink:
            lines += [f"{a.id} <-- {_port(rule)} --> {b.id}" for a in sources for b in sinks if a.id > b.id]
        else:
            lines += [f"{a.id} -- {_port(rule)} --> {b.id}" for a in sources for b in sinks]
    return lines


def _port(rule: Properties) -> str:
    return "everything" if rule["IpProtocol"] == "-1" else str(rule["FromPort"])


def drawing(templates: Mapping[str, Template]) -> str:
    """Mermaid. Pure."""
    deployment = Deployment(templates)
    drawn = boxes(deployment)
    lines = ["flowchart TB"]
    for number, place in enumerate(dict.fromkeys(box.place for box in drawn)):
        lines.append(f'    subgraph place{number}["{place}"]')
        lines += [f'        {box.id}["{box.label}"]' for box in drawn if box.place == place]
        lines.append("    end")
    lines += [f"    {arrow}" for arrow in arrows(deployment, drawn)]
    lines += [f"    {line}" for line in _beside(deployment)]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def _beside(deployment: Deployment) -> Iterator[str]:
    """What nodes read from and report to."""
    parameters = sum(1 for _ in deployment.of("SSM::Parameter"))
    alarms = sum(1 for _ in deployment.of("CloudWatch::Alarm"))
    rules = sum(1 for _ in deployment.of("Events::Rule"))
    pipelines = sum(1 for _ in deployment.of("ImageBuilder::ImagePipeline"))
    yield f'parameters[("Parameter Store: {parameters} tunables")]'
    yield f'alarms{{{{"{alarms} alarms, {rules} event rule(s) to one topic; a dashboard"}}}}'
    yield f'images["{pipelines} image pipelines; ids pinned by hand"]'
    for name, _ in deployment.of("AutoScaling::AutoScalingGroup"):
        yield f"parameters -. agent reads .-> {name}"
        yield f"{name} -. metrics .-> alarms"
        yield f"images -. AMI .-> {name}"


def page(text: str, picture: str) -> str:
    """`text` with what is between the marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{picture}{END}{after}"


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        print("usage: python -m scripts.drawing FOLDER, where `make synth` wrote a profile", file=sys.stderr)
        return 2
    found = {path.name: json.loads(path.read_text()) for path in sorted(Path(argv[0]).glob("*.template.json"))}
    PAGE.write_text(page(PAGE.read_text(), drawing(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
