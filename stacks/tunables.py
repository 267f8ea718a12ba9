"""An SSM parameter per entry of the schema, for operators to tune a running deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from runtime.parameters import PARAMETERS, Kind, Parameter
from stacks.pattern import allowed_pattern

_PREFIX = re.compile(r"(/[A-Za-z0-9_.-]+)+")
_RESERVED = ("/aws", "/ssm")


class Tunables(Construct):
    """`<prefix>/<name>` for every parameter, set to `values` or the schema's default.

    Parameter Store itself refuses most values outside the schema; readers check again. Raises `ValueError` for a prefix
    that Parameter Store would refuse at deployment.
    """

    def __init__(self, scope: Construct, construct_id: str, *, prefix: str, values: Mapping[str, str] = {}) -> None:
        super().__init__(scope, construct_id)
        if not _PREFIX.fullmatch(prefix) or prefix.lower().startswith(_RESERVED):
            raise ValueError(
                f"prefix is {prefix!r}, not a path that Parameter Store takes. "
                "hint: set one like /kv-roundtrip, not below /aws or /ssm"
            )
        self.parameters = {p.name: self._parameter(p, prefix, values.get(p.name)) for p in PARAMETERS}

    def _parameter(self, parameter: Parameter, prefix: str, value: str | None) -> ssm.StringParameter:
        resource = ssm.StringParameter(
            self,
            parameter.name,
            parameter_name=f"{prefix}/{parameter.name}",
            string_value=value_text(parameter) if value is None else value,
            tier=ssm.ParameterTier.STANDARD,
            description=description(parameter),
            allowed_pattern=allowed_pattern(parameter),
        )
        tags = cdk.Tags.of(resource)
        tags.add("kv-roundtrip:apply", parameter.apply.value)
        # Tag values hold no comma.
        tags.add("kv-roundtrip:readers", " ".join(reader.value for reader in parameter.readers))
        return resource


def value_text(parameter: Parameter) -> str:
    """The default as `Parameter.parse` reads it."""
    if parameter.kind is Kind.FLAG:
        return str(parameter.default).lower()
    if parameter.kind is Kind.NUMBER:
        return str(parameter.default).removesuffix(".0")
    return str(parameter.default)


def description(parameter: Parameter) -> str:
    unit = f" {parameter.unit}" if parameter.unit else ""
    return f"{parameter.sentence} ({parameter.bounds}{unit}; a change applies: {parameter.apply.value})"
