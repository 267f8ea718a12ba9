"""Types that moto lacks, API and all, or takes wrongly: their properties are kept and given back, and nothing happens behind them.

What they would do on AWS is not tested here. `/emulator/report` lists them, so that a test can read them back.
"""

from __future__ import annotations

from typing import Any

from tests.emulator.kinds import Kind, Made

_IMAGE_BUILDER = "moto has no Image Builder; building an image needs AWS"

REASONS = {
    "AWS::S3::BucketPolicy": "moto denies what a policy denies under a condition, also where the condition does not hold",
    "AWS::ImageBuilder::Component": _IMAGE_BUILDER,
    "AWS::ImageBuilder::ImageRecipe": _IMAGE_BUILDER,
    "AWS::ImageBuilder::InfrastructureConfiguration": _IMAGE_BUILDER,
    "AWS::ImageBuilder::DistributionConfiguration": _IMAGE_BUILDER,
    "AWS::ImageBuilder::ImagePipeline": _IMAGE_BUILDER,
    "AWS::ImageBuilder::LifecyclePolicy": _IMAGE_BUILDER,
    "AWS::ImageBuilder::Workflow": _IMAGE_BUILDER,
    "AWS::ElastiCache::ServerlessCache": "moto's ElastiCache has no serverless caches",
    "AWS::ElastiCache::ParameterGroup": "moto's ElastiCache has no parameter groups",
    "AWS::ElastiCache::User": "moto's ElastiCache users ask for passwords where Valkey takes IAM",
    "AWS::ElastiCache::UserGroup": "moto's ElastiCache has no user groups",
}

_made: dict[tuple[str, str], Made] = {}


def listed() -> list[dict[str, Any]]:
    """Every recorded resource that exists now."""
    return [{"type": type_, "id": id_, "properties": made.properties} for (type_, id_), made in sorted(_made.items())]


class _AnyAttribute(dict[str, str]):
    """An attribute not spelled out is the property of that name, or a placeholder that says what it stands for."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self._made = made

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        if name in ("Arn", "ARN"):
            return self._made.id
        if name.endswith("Port"):
            return "6379"
        return str(self._made.properties.get(name, f"{name.lower()}.{self._made.logical_resource_id}".lower()))


def _create(made: Made) -> None:
    service, name = made.kind.type.lower().split("::")[1:]
    unique = made.id
    version = made.properties.get("Version")
    made.id = f"arn:aws:{service}:{made.region}:123456789012:{name}/{unique}".lower() + (
        f"/{version}" if version else ""
    )
    if (made.kind.type, made.id) in _made:
        raise ValueError(f"{made.kind.type} {made.id} exists already. hint: give a changed one another version")
    made.attributes = _AnyAttribute(made)
    _made[made.kind.type, made.id] = made


def _delete(made: Made) -> None:
    _made.pop((made.kind.type, made.id), None)


def _name(type_: str) -> str:
    return {"AWS::ElastiCache::ServerlessCache": "ServerlessCacheName"}.get(type_, "Name")


KINDS = tuple(Kind(type_, _create, _delete, name=_name(type_)) for type_ in REASONS)
