"""CloudFormation resource types that moto lacks or treats too loosely: how each is made, changed and removed.

A kind says it as three small functions over the emulator's own API; `install` puts them where moto looks its types up.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError
from moto.cloudformation import parsing

from tests.emulator.api import Api, Properties


@dataclass(slots=True)
class Made:
    """A resource as its stack remembers it. moto asks for the attributes and sets the last two fields."""

    kind: Kind
    api: Api
    region: str
    id: str
    properties: Properties
    attributes: dict[str, str] = field(default_factory=dict)
    logical_resource_id: str = ""
    cf_resource_type: str = ""

    @property
    def physical_resource_id(self) -> str:
        return self.id

    def is_created(self) -> bool:
        return True

    def get_cfn_attribute(self, name: str) -> str:
        if name not in self.attributes:
            raise parsing.UnformattedGetAttTemplateException()
        return self.attributes[name]

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.api.call(self.region, service, operation, arguments)


@dataclass(frozen=True, slots=True)
class Kind:
    type: str
    create: Callable[[Made], None]
    """Makes what `made.properties` describe; sets `made.id`, which holds the name to use, and `made.attributes`."""
    delete: Callable[[Made], None]
    update: Callable[[Made, Properties], None] | None = None
    """Changes it in place to the properties given. None: it is replaced."""
    name: str = ""
    """The property that holds the resource's name."""


class _Adapter:
    """What moto expects of a type. Its names, so that its parser can call them."""

    def __init__(self, kind: Kind, api: Api) -> None:
        self.kind = kind
        self.api = api

    def cloudformation_name_type(self) -> str:
        return self.kind.name

    def cloudformation_type(self) -> str:
        return self.kind.type

    def has_cfn_attr(self, attr: str) -> bool:
        return True  # a wrong one fails in get_cfn_attribute

    def create_from_cloudformation_json(
        self, resource_name: str, cloudformation_json: Properties, account_id: str, region_name: str, **_: Any
    ) -> Made:
        # moto changes what it is given in some places; the copy is what a later delete needs.
        properties = copy.deepcopy(dict(cloudformation_json.get("Properties", {})))
        made = Made(self.kind, self.api, region_name, resource_name, properties)
        with told(self.kind):
            self.kind.create(made)
        return made

    def update_from_cloudformation_json(
        self,
        original_resource: Made,
        new_resource_name: str,
        cloudformation_json: Properties,
        account_id: str,
        region_name: str,
    ) -> Made:
        properties = copy.deepcopy(dict(cloudformation_json.get("Properties", {})))
        if properties == original_resource.properties:
            return original_resource
        with told(self.kind):
            if self.kind.update is not None:
                self.kind.update(original_resource, properties)
            else:
                # Deleted first: most names are unique, and CloudFormation's other order is of no use here.
                self.kind.delete(original_resource)
        if self.kind.update is None:
            return self.create_from_cloudformation_json(new_resource_name, cloudformation_json, account_id, region_name)
        original_resource.properties = properties
        return original_resource


@contextlib.contextmanager
def told(kind: Kind) -> Iterator[None]:
    """An answer that the CDK CLI prints: it retries on a server error and then sees only that the stack exists."""
    try:
        yield
    except (ClientError, ParamValidationError, KeyError, TypeError, ValueError) as error:
        raise parsing.ValidationError(message=f"{kind.type}: {type(error).__name__}: {error}") from error


def install(kinds: Iterable[Kind], api: Api) -> None:
    types, names = parsing.get_model_map(), parsing.get_name_type_map()
    for kind in kinds:
        types[kind.type] = _Adapter(kind, api)  # type: ignore[assignment]
        names[kind.type] = kind.name
    # moto looks for a type's name property in its own classes first, then in the map.
    ours = {kind.type for kind in kinds}
    classes = parsing.get_model_list()
    classes[:] = [model for model in classes if model.cloudformation_type() not in ours]


def simple(
    type_: str, service: str, create: str, delete: str, *, name: str, keys: dict[str, str], update: bool = False
) -> Kind:
    """A type whose properties are the arguments of `create`, and of which `keys`, argument -> property, name it to `delete`.

    With `update`, `create` called again changes it.
    """

    def make(made: Made) -> None:
        made.properties = {name: made.id, **made.properties}
        made.id = str(made.properties[name])
        made.call(service, create, **made.properties)

    def remove(made: Made) -> None:
        made.call(service, delete, **{argument: made.properties[key] for argument, key in keys.items()})

    def change(made: Made, properties: Properties) -> None:
        made.call(service, create, **{name: made.id, **properties})

    return Kind(type_, make, remove, change if update else None, name=name)
