"""boto3 clients of the emulator itself: what its CloudFormation lacks is made through its own public API.

botocore checks names and types of every argument on the way, which moto's CloudFormation does not.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.model import ListShape, MapShape, Shape, StructureShape

Properties = Mapping[str, Any]

_CONFIG = Config(retries={"total_max_attempts": 1}, read_timeout=60)
CREDENTIALS = {"aws_access_key_id": "emulator", "aws_secret_access_key": "emulator"}


class Api:
    """One set of clients per region, made when first asked for. Safe to share between threads."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._clients: dict[tuple[str, str], Any] = {}
        # boto3 clients may be shared between threads, but not made by two at once.
        self._lock = threading.Lock()

    def client(self, service: str, region: str) -> Any:
        with self._lock:
            key = (service, region)
            if key not in self._clients:
                self._clients[key] = boto3.session.Session().client(
                    service, region_name=region, endpoint_url=self._endpoint, config=_CONFIG, **CREDENTIALS
                )
            return self._clients[key]

    def call(self, region: str, service: str, operation: str, arguments: Properties) -> dict[str, Any]:
        """`arguments` may hold text where the API takes a number, as CloudFormation allows. Raises what botocore raises."""
        client = self.client(service, region)
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
        answer: dict[str, Any] = getattr(client, operation)(**fit(model.input_shape, arguments))
        return answer

    def takes(self, region: str, service: str, operation: str, properties: Properties) -> dict[str, Any]:
        """Those of `properties` which the operation has an argument for."""
        client = self.client(service, region)
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
        return {name: value for name, value in properties.items() if name in model.input_shape.members}


def fit(shape: Shape, value: Any) -> Any:
    """CloudFormation's loose scalars (`"300"`, `"true"`, 5 or a document for text) as the API's shape wants them; names stay as they are."""
    if isinstance(shape, StructureShape) and isinstance(value, Mapping):
        return {name: fit(shape.members[name], item) if name in shape.members else item for name, item in value.items()}
    if isinstance(shape, ListShape) and isinstance(value, list):
        return [fit(shape.member, item) for item in value]
    if isinstance(shape, MapShape) and isinstance(value, Mapping):
        return {name: fit(shape.value, item) for name, item in value.items()}
    if shape.type_name in ("integer", "long") and isinstance(value, str):
        return int(value)
    if shape.type_name in ("float", "double") and isinstance(value, str):
        return float(value)
    if shape.type_name == "boolean" and isinstance(value, str):
        return value.lower() == "true"
    if shape.type_name == "string" and isinstance(value, Mapping):
        return json.dumps(value)  # a policy document
    if shape.type_name == "string" and isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value
