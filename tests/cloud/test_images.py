"""Image pipelines and the scripts that they run, as far as they can be looked at without Image Builder."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import moto.ec2
import pytest
import yaml  # type: ignore[import-untyped]

from stacks.builders import builder
from stacks.disks import IMAGE_GIB
from stacks.images import ENGINES, ROUTER
from stacks.machines import ENGINES as MACHINES
from stacks.machines import Accelerator
from tests.cloud.synth import PROFILES, ROOT, config, of_profile, of_type, synthesise, text

BOOT = ROOT / "runtime" / "boot"
# Documented for schemaVersion 1.0: https://docs.aws.amazon.com/imagebuilder/latest/userguide/toe-use-documents.html
PHASES = ["build", "validate", "test"]


def images(**changes: Any) -> dict[str, Any]:
    return synthesise(config("p5en", **changes))["images"]


def named(template: dict[str, Any], kind: str) -> dict[str, Any]:
    """Properties by the name that Image Builder knows them by."""
    return {properties["Name"]: properties for properties in of_type(template, f"ImageBuilder::{kind}").values()}


def parts_of(data: Any) -> list[Any]:
    parts: list[Any] = data["Fn::Join"][1]
    return parts


@pytest.mark.parametrize("profile", PROFILES)
def test_components_are_documents_that_image_builder_takes(profile: str) -> None:
    for properties in named(of_profile(profile)["images"], "Component").values():
        document = yaml.safe_load(
            "".join(part if isinstance(part, str) else part["Fn::Sub"] for part in parts_of(properties["Data"]))
        )
        assert document["schemaVersion"] == 1.0
        phases = [phase["name"] for phase in document["phases"]]
        assert phases == [name for name in PHASES if name in phases]
        steps = [step for phase in document["phases"] for step in phase["steps"]]
        assert len({step["name"] for step in steps}) == len(steps)
        for step in steps:
            if step["action"] == "S3Download":
                for given in step["inputs"]:
                    assert set(given) == {"source", "destination"}
                    assert given["source"].startswith("s3://")
            else:
                assert step["action"] == "ExecuteBash"
                assert all(isinstance(line, str) for line in step["inputs"]["commands"])


def test_what_is_immutable_has_a_new_name_when_it_changes() -> None:
    """A recipe can't be changed, and a second one of its name can't be made: the update of the stack would fail."""
    usual, other = images(), images(images__engine_base="ami-0123456789abcdef5")
    before, after = named(usual, "ImageRecipe"), named(other, "ImageRecipe")
    for name in set(before) & set(after):
        assert before[name] == after[name], name
    assert {properties["ParentImage"] for properties in after.values()} - {p["ParentImage"] for p in before.values()}


def test_a_private_base_parameter_may_be_read_by_the_pipeline_of_engines_alone() -> None:
    template = images(images__engine_base="/platform/golden/ubuntu")
    policies = of_type(template, "IAM::Policy")
    readers = []
    for name, policy in policies.items():
        for statement in policy["PolicyDocument"]["Statement"]:
            if "ssm:GetParameter" in str(statement["Action"]):
                assert text(statement["Resource"]).endswith(":parameter/platform/golden/ubuntu")
                readers.append(name)
    assert len(readers) == 1
    assert readers[0].startswith("EngineExecutionRole")


def offered() -> dict[str, set[str]]:
    """Instance types by zone id: EC2's own data, as moto ships it."""
    found: dict[str, set[str]] = {}
    folder = Path(moto.ec2.__file__).parent / "resources" / "instance_type_offerings" / "availability-zone-id"
    files = list(folder.glob("*.json*"))
    assert len(files) > 20
    for file in files:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for entry in json.loads(raw):
            found.setdefault(entry["Location"], set()).add(entry["InstanceType"])
    return found


def test_the_zone_of_the_engines_offers_the_machine_that_builds_their_image() -> None:
    zones, without = offered(), set()
    for machine in MACHINES.values():
        for zone, types in zones.items():
            if machine.type in types and machine.accelerator is not Accelerator.CPU:
                type = builder(machine.accelerator, zone)
                assert not type or type in types, (machine.type, zone, type)
                without |= set() if type else {zone}
    assert len(without) == 8
    for profile in PROFILES:
        given = config(profile)
        infrastructures = of_type(of_profile(profile)["images"], "ImageBuilder::InfrastructureConfiguration")
        assert len(infrastructures) == 2
        for properties in infrastructures.values():
            assert set(properties["InstanceTypes"]) <= zones[given.engine_zone], properties


def test_the_builder_can_be_named() -> None:
    template = images(images__builder="g6e.2xlarge")
    types = [p["InstanceTypes"] for p in of_type(template, "ImageBuilder::InfrastructureConfiguration").values()]
    assert ["g6e.2xlarge"] in types


def test_nodes_have_room_for_the_snapshot_of_their_image() -> None:
    for recipe, accelerator in [*((r, a) for a, r in ENGINES.items()), (ROUTER, Accelerator.NONE)]:
        assert recipe.disk_gib == IMAGE_GIB[accelerator]
    for profile in PROFILES:
        given = config(profile, root_volume_gib=20)
        templates = synthesise(given)
        sizes = {
            role: [
                disk["Ebs"]["VolumeSize"]
                for name, template in of_type(templates[kind], "EC2::LaunchTemplate").items()
                for disk in template["LaunchTemplateData"]["BlockDeviceMappings"]
                if role in name
            ]
            for kind, role in (("engines", "Prefill"), ("engines", "Decode"), ("routing", "Routers"))
        }
        assert min(*sizes["Prefill"], *sizes["Decode"]) >= IMAGE_GIB[given.machine.accelerator]
        assert min(sizes["Routers"]) >= IMAGE_GIB[Accelerator.NONE]


def test_install_calls_nothing_by_a_mode_that_unpacking_has_lost(tmp_path: Path) -> None:
    """`python3 -m zipfile -e`, as the component unpacks the source, makes no file executable."""
    packed = tmp_path / "source.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(ROOT / "scripts" / "setup.sh", "scripts/setup.sh")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", packed, tmp_path / "here"], check=True, timeout=60)
    assert not os.access(tmp_path / "here" / "scripts" / "setup.sh", os.X_OK)
    script = (BOOT / "install.sh").read_text()
    runs = [
        line.strip() for line in script.splitlines() if re.search(r"(?<![\w/.])(scripts|runtime/boot)/\w+\.sh", line)
    ]
    assert runs
    assert all(line.startswith(("bash ", "#")) for line in runs), runs
    # What units and user data start by its path.
    assert "chmod 0755 runtime/boot/*.sh" in script


def test_install_finds_the_python_that_it_installed(tmp_path: Path) -> None:
    """uv looks for its own installations in the folder that the environment names, whatever `--install-dir` was."""
    uv = Path(sys.executable).with_name("uv")
    installed = tmp_path / "cpython-3.11.7-linux-x86_64-gnu"
    real = Path(os.path.realpath(sys.executable)).parents[1]
    for name in ("bin", "lib"):
        installed.mkdir(exist_ok=True)
        (installed / name).symlink_to(real / name)

    def find(**more: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), **more}
        command = [str(uv), "python", "find", "--no-project", "--managed-python", "3.11"]
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    assert find().returncode != 0
    assert find(UV_PYTHON_INSTALL_DIR=str(tmp_path)).stdout.startswith(str(installed))
    script = (BOOT / "install.sh").read_text()
    assert script.index("export UV_PYTHON_INSTALL_DIR=") < script.index("$uv python install")
    assert "--install-dir" not in script


def test_install_waits_for_apt_and_sets_the_clock() -> None:
    script = (BOOT / "install.sh").read_text()
    assert "DPkg::Lock::Timeout" in script
    assert script.index("cloud-init status --wait") < script.index("apt update")
    # Nodes may only use port 443: the pool that Ubuntu asks is out of reach.
    assert "server 169.254.169.123" in script
    # NIXL's LIBFABRIC plugin needs it, and says "unsupported backend" without.
    assert "libhwloc15" in script


def test_image_tests_run_as_the_services_user() -> None:
    loads = [
        line for line in (BOOT / "test_image.sh").read_text().splitlines() if 'passes "' in line and "loads" in line
    ]
    assert len(loads) == 5
    assert all("as_service" in line for line in loads)
