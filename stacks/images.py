"""EC2 Image Builder pipelines for the engine and the router image, from this checkout and its lock files.

A pipeline runs when an operator starts it and publishes the image id to Parameter Store. Deployments never read that
parameter: `scripts/pin_images.py` copies the id into cdk.json, so that a new image replaces nodes only on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_imagebuilder as imagebuilder
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from stacks.builders import builder
from stacks.config import Config
from stacks.disks import IMAGE_GIB
from stacks.machines import Accelerator
from stacks.network import NetworkStack

_PROJECT = Path(__file__).resolve().parent.parent
# Everything that an image holds; the rest of the checkout changes no image.
_SOURCE = ("connector", "locks", "router", "runtime", "scripts", "stacks", "pyproject.toml", "README.md")

_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


@dataclass(frozen=True, slots=True)
class Recipe:
    """`base` is the public parameter of the parent image."""

    kind: str
    base: str
    disk_gib: int


ENGINES: Mapping[Accelerator, Recipe] = MappingProxyType(
    {
        Accelerator.CUDA: Recipe(
            "cuda",
            "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
            IMAGE_GIB[Accelerator.CUDA],
        ),
        Accelerator.NEURON: Recipe(
            "neuron",
            "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id",
            IMAGE_GIB[Accelerator.NEURON],
        ),
        Accelerator.CPU: Recipe("cpu", _UBUNTU, IMAGE_GIB[Accelerator.CPU]),
    }
)
ROUTER = Recipe("router", _UBUNTU, IMAGE_GIB[Accelerator.NONE])

_ROUTER_BUILDER = "c7i.large"


class ImagesStack(cdk.Stack):
    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, network: NetworkStack, env: cdk.Environment
    ) -> None:
        super().__init__(scope, construct_id, env=env, description="KV Roundtrip: image pipelines")
        self._config = config
        self._network = network
        self._source = assets.Asset(
            self,
            "Source",
            path=str(_PROJECT),
            exclude=["/*", *(f"!/{name}" for name in _SOURCE), "__pycache__", "*.pyc"],
            ignore_mode=cdk.IgnoreMode.GIT,
        )
        self._builder = iam.Role(
            self,
            "BuilderRole",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            description=f"{config.name}: machines that build images",
            managed_policies=[
                iam.ManagedPolicy.from_aws_managed_policy_name(name)
                for name in ("AmazonSSMManagedInstanceCore", "EC2InstanceProfileForImageBuilder")
            ],
        )
        archive = self._source.bucket.arn_for_objects(self._source.s3_object_key)
        self._builder.add_to_policy(iam.PolicyStatement(actions=["s3:GetObject"], resources=[archive]))
        self._profile = iam.CfnInstanceProfile(self, "BuilderProfile", roles=[self._builder.role_name])
        engine = ENGINES[config.machine.accelerator]
        base = config.images.engine_base or engine.base
        builds = config.images.builder or builder(config.machine.accelerator, config.engine_zone)
        self._pipeline("Engine", Recipe(engine.kind, base, engine.disk_gib), builds)
        self._pipeline("Router", ROUTER, _ROUTER_BUILDER)

    def _pipeline(self, name: str, recipe: Recipe, builds: str) -> None:
        """`builds` is the type of the machine that builds the image and then tests it."""
        # Components and recipes never change once made: what is in them is part of their name.
        version = self._source.asset_hash[:8]
        label = f"{self._config.name}-{name.lower()}-{recipe.kind}"
        component = imagebuilder.CfnComponent(
            self,
            f"{name}Component",
            name=f"{label}-{version}",
            platform="Linux",
            version="1.0.0",
            description="KV Roundtrip from its lock files",
            data=self._document(recipe.kind),
        )
        image_recipe = imagebuilder.CfnImageRecipe(
            self,
            f"{name}Recipe",
            name=f"{label}-{version}-{_digest(recipe)}",
            version="1.0.0",
            parent_image=recipe.base if recipe.base.startswith("ami-") else f"ssm:{recipe.base}",
            components=[imagebuilder.CfnImageRecipe.ComponentConfigurationProperty(component_arn=component.attr_arn)],
            block_device_mappings=[
                imagebuilder.CfnImageRecipe.InstanceBlockDeviceMappingProperty(
                    device_name="/dev/sda1",
                    ebs=imagebuilder.CfnImageRecipe.EbsInstanceBlockDeviceSpecificationProperty(
                        encrypted=True, volume_type="gp3", volume_size=recipe.disk_gib, delete_on_termination=True
                    ),
                )
            ],
        )
        parameter = f"/{self._config.name}-images/{name.lower()}"
        imagebuilder.CfnImagePipeline(
            self,
            f"{name}Pipeline",
            name=label,
            description="Runs when started by hand",
            image_recipe_arn=image_recipe.attr_arn,
            infrastructure_configuration_arn=self._infrastructure(name, label, builds),
            distribution_configuration_arn=self._distribution(name, label, parameter),
            image_tests_configuration=imagebuilder.CfnImagePipeline.ImageTestsConfigurationProperty(
                image_tests_enabled=True, timeout_minutes=60
            ),
            execution_role=self._execution_role(name, parameter, recipe.base).role_arn,
        )
        cdk.CfnOutput(
            self, f"{name}ImageParameter", value=parameter, description="Where the pipeline puts the image id"
        )

    def _document(self, kind: str) -> str:
        """A component's YAML: two scripts of the source do the work, so that shellcheck reads them."""
        here = "/opt/kv-roundtrip"
        return f"""schemaVersion: 1.0
phases:
  - name: build
    steps:
      - name: Source
        action: S3Download
        inputs:
          - source: {self._source.s3_object_url}
            destination: /tmp/kv-roundtrip.zip
      - name: Install
        action: ExecuteBash
        inputs:
          commands:
            - python3 -m zipfile -e /tmp/kv-roundtrip.zip {here}
            - bash {here}/runtime/boot/install.sh {kind}
  - name: test
    steps:
      - name: Works
        action: ExecuteBash
        inputs:
          commands:
            - bash {here}/runtime/boot/test_image.sh {kind}
"""

    def _infrastructure(self, name: str, label: str, builds: str) -> str:
        network = self._network
        configuration = imagebuilder.CfnInfrastructureConfiguration(
            self,
            f"{name}Infrastructure",
            name=label,
            instance_profile_name=self._profile.ref,
            instance_types=[builds],
            subnet_id=network.subnets.engine,
            security_group_ids=[network.builder_group.security_group_id],
            terminate_instance_on_failure=True,
            instance_metadata_options=imagebuilder.CfnInfrastructureConfiguration.InstanceMetadataOptionsProperty(
                http_tokens="required", http_put_response_hop_limit=1
            ),
        )
        return configuration.attr_arn

    def _distribution(self, name: str, label: str, parameter: str) -> str:
        configuration = imagebuilder.CfnDistributionConfiguration(
            self,
            f"{name}Distribution",
            name=label,
            distributions=[
                imagebuilder.CfnDistributionConfiguration.DistributionProperty(
                    region=self.region,
                    ami_distribution_configuration={
                        "Name": f"{label} {{{{ imagebuilder:buildDate }}}}",
                        "AmiTags": {"project": "kv-roundtrip", "kv-roundtrip:source": self._source.asset_hash},
                    },
                    ssm_parameter_configurations=[
                        imagebuilder.CfnDistributionConfiguration.SsmParameterConfigurationProperty(
                            parameter_name=parameter, data_type="aws:ec2:image"
                        )
                    ],
                )
            ],
        )
        return configuration.attr_arn

    def _execution_role(self, name: str, parameter: str, base: str) -> iam.Role:
        """The service's own role may not write parameters. Trusts the service; what it needs beyond is named here."""
        role = iam.Role(
            self,
            f"{name}ExecutionRole",
            assumed_by=iam.ServicePrincipal("imagebuilder.amazonaws.com"),
            description=f"{self._config.name}: publishes the {name.lower()} image",
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("EC2ImageBuilderExecutionPolicy")],
        )
        parameters = f"arn:{self.partition}:ssm:{self.region}:{self.account}:parameter"
        role.add_to_policy(iam.PolicyStatement(actions=["ssm:PutParameter"], resources=[parameters + parameter]))
        if base.startswith("/") and not base.startswith("/aws/service/"):
            role.add_to_policy(iam.PolicyStatement(actions=["ssm:GetParameter"], resources=[parameters + base]))
        role.add_to_policy(iam.PolicyStatement(actions=["ec2:DescribeImages"], resources=["*"]))
        self._builder.grant_pass_role(role)
        return role


def _digest(recipe: Recipe) -> str:
    """Of what a recipe is made from beside the source, for its name."""
    return hashlib.sha256(f"{recipe.base} {recipe.disk_gib}".encode()).hexdigest()[:6]
