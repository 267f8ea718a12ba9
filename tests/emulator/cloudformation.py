"""moto's CloudFormation, where it is silent: what it leaves out is noted by name, what it forgets on updates is done.

`install` changes moto's own functions in this process; call it once, before the first request.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from moto.cloudformation import models, parsing

from tests.emulator.kinds import Made, told

SKIPPED = {
    "AWS::CDK::Metadata": "usage statistics of the CDK; holds nothing",
}
"""Types that may be left out, each with the reason. Anything else that moto leaves out fails the run."""


class Gaps:
    """What was asked for and not done, by name. The only owner of that list; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, set[str]] = {}

    def note(self, what: str, type_: str) -> None:
        if type_ not in SKIPPED:
            with self._lock:
                self._found.setdefault(what, set()).add(type_)

    def listed(self) -> dict[str, list[str]]:
        """`create`, `update` or `delete` -> the types."""
        with self._lock:
            return {what: sorted(types) for what, types in sorted(self._found.items())}


def install(gaps: Gaps) -> None:
    _note_unsupported(gaps)
    _note_lost_updates(gaps)
    _note_lost_deletes(gaps)
    _update_dependents()
    _forget_unknown_parameters()
    _finish_change_sets()
    _delete_in_order()


def _can(resource_class: Any, method: str) -> bool:
    return not hasattr(getattr(resource_class, method), "__isabstractmethod__")


def _note_unsupported(gaps: Gaps) -> None:
    known = parsing.resource_class_from_type

    def resource_class_from_type(resource_type: str) -> Any:
        found = known(resource_type)
        if found is None and resource_type not in parsing.NULL_MODELS:
            gaps.note("create", resource_type)
        return found

    parsing.resource_class_from_type = resource_class_from_type


def _note_lost_updates(gaps: Gaps) -> None:
    """Of a type without an update moto would lose the resource: it keeps `None` in its place."""
    update = parsing.parse_and_update_resource

    def parse_and_update_resource(
        logical_id: str, resource_json: dict[str, Any], resources_map: Any, account_id: str, region_name: str
    ) -> Any:
        original = resources_map[logical_id]
        resource_class = parsing.resource_class_from_type(resource_json["Type"])
        now = _resolved(resource_json, resources_map)
        if resource_class is None or resources_map.applied.get(logical_id) == now:
            return original  # only its metadata or dependencies have changed
        resources_map.applied[logical_id] = now
        if not isinstance(original, Made) and not _can(resource_class, "update_from_cloudformation_json"):
            gaps.note("update", resource_json["Type"])
            return original
        return update(logical_id, resource_json, resources_map, account_id, region_name)

    parsing.parse_and_update_resource = parse_and_update_resource


def _note_lost_deletes(gaps: Gaps) -> None:
    delete = parsing.ResourceMap._delete_resource

    def _delete_resource(self: Any, parsed_resource: Any, resource_json: dict[str, Any]) -> None:
        if isinstance(parsed_resource, Made):
            with told(parsed_resource.kind):
                parsed_resource.kind.delete(parsed_resource)
            return
        resource_class = parsing.resource_class_from_type(resource_json["Type"])
        if not hasattr(parsed_resource, "delete") and not _can(resource_class, "delete_from_cloudformation_json"):
            gaps.note("delete", resource_json["Type"])
        delete(self, parsed_resource, resource_json)

    parsing.ResourceMap._delete_resource = _delete_resource


def _resolved(resource_json: Mapping[str, Any], resources_map: Any) -> Any:
    """Its properties with every reference replaced by what it refers to now."""
    return parsing.clean_json(copy.deepcopy(resource_json.get("Properties", {})), resources_map)


def _existing(resources_map: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, resource_json in resources_map._resource_json_map.items():
        if resources_map._parsed_resources.get(name) is not None:
            yield name, resource_json


def _update_dependents() -> None:
    """moto updates only what has changed in the template itself, so that a group would keep the old version of its template."""
    update = parsing.ResourceMap.update

    def update_all(self: Any, template: dict[str, Any], parameters: dict[str, Any] | None = None) -> None:
        # Logical name -> properties as they were last applied, references replaced.
        self.applied = {name: _resolved(json, self) for name, json in _existing(self)}
        update(self, template, parameters)
        while _follow(self):
            pass

    parsing.ResourceMap.update = update_all


def _follow(resources_map: Any) -> bool:
    """Updates what refers to something that has changed since. False when there was nothing of the kind."""
    followed = False
    for name, json in list(_existing(resources_map)):
        now = _resolved(json, resources_map)
        if now != resources_map.applied.setdefault(name, now):
            followed = True
            resources_map._parsed_resources[name] = parsing.parse_and_update_resource(
                name, json, resources_map, resources_map._account_id, resources_map._region_name
            )
    return followed


def _forget_unknown_parameters() -> None:
    """The CDK CLI asks to keep parameters that the stack never had."""
    resolve = models.CloudFormationBackend._resolve_update_parameters

    def _resolve_update_parameters(self: Any, instance: Any, incoming_params: list[dict[str, Any]]) -> dict[str, str]:
        known = [
            given
            for given in incoming_params
            if not given.get("UsePreviousValue") or given["ParameterKey"] in instance.parameters
        ]
        return resolve(self, instance, known)

    models.CloudFormationBackend._resolve_update_parameters = _resolve_update_parameters


def _finish_change_sets() -> None:
    """A stack made through a change set, as `cdk bootstrap` does, would have no outputs."""
    apply = models.ChangeSet.apply

    def apply_and_keep(self: Any) -> None:
        apply(self)
        self.stack.template_dict = self.template_dict
        self.stack.output_map = self.stack._create_output_map()

    models.ChangeSet.apply = apply_and_keep


def _delete_in_order() -> None:
    """moto deletes in no order and again until nothing more goes; the outputs of a deleted stack would make it anew."""

    def delete(self: Any) -> None:
        kept = {name for name, json in self._resource_json_map.items() if json.get("DeletionPolicy") == "Retain"}
        for name in reversed(in_order(self._resource_json_map)):
            resource = self._parsed_resources.get(name)
            if name not in kept and resource is not None and not isinstance(resource, str):
                self._delete_resource(resource, self._resource_json_map[name])
                del self._parsed_resources[name]

    end = models.Stack.delete

    def end_stack(self: Any) -> None:
        end(self)
        self.output_map = parsing.OutputMap(self.resource_map, {}, self.stack_id)

    parsing.ResourceMap.delete = delete
    models.Stack.delete = end_stack


def in_order(resources: Mapping[str, Any]) -> list[str]:
    """Logical names, each after all that it refers to or depends on."""
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in resources and name not in ordered:
            json = resources[name]
            after = json.get("DependsOn", [])
            for other in [*references(json), *([after] if isinstance(after, str) else after)]:
                if other != name:
                    visit(other)
            ordered[name] = None

    for name in resources:
        visit(name)
    return list(ordered)


_IN_TEXT = re.compile(r"\$\{([A-Za-z0-9]+)[.}]")


def references(json: Any) -> Iterator[str]:
    """Every logical name in `Ref`, `Fn::GetAtt` and `Fn::Sub`."""
    if isinstance(json, Mapping):
        for key, value in json.items():
            if key == "Ref":
                yield value
            elif key == "Fn::GetAtt":
                yield value.partition(".")[0] if isinstance(value, str) else value[0]
            elif key == "Fn::Sub":
                yield from _IN_TEXT.findall(value if isinstance(value, str) else value[0])
                yield from references(value)
            else:
                yield from references(value)
    elif isinstance(json, list):
        for item in json:
            yield from references(item)
