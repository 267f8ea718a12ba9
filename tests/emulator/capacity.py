"""What moto does not know of an account's limits: EC2's vCPU quotas and capacity reservations, Capacity Blocks included.

A quota's increase is granted at once. `create_capacity_reservation` makes an active reservation; one with an end date in the
request is listed as a Capacity Block, which AWS sells by other calls.
"""

from __future__ import annotations

import json
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response
from moto.moto_api._internal import mock_random
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

# Code -> name and what a new account has.
_QUOTAS = {
    "L-417A185B": ("Running On-Demand P instances", 0.0),
    "L-2C3B7624": ("Running On-Demand Trn instances", 0.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 0.0),
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 5.0),
}

_reservations: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}


def install() -> None:
    for operation in (create_capacity_reservation, describe_capacity_reservations):
        setattr(EC2Response, operation.__name__, operation)
    ServiceQuotasResponse.request_service_quota_increase = request_service_quota_increase
    get = ServiceQuotasBackend.get_service_quota

    def get_service_quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        if service_code != "ec2":
            found: dict[str, Any] = get(self, service_code, quota_code)
            return found
        if quota_code not in _QUOTAS:
            raise NoSuchResource
        return _quota(self, quota_code)

    ServiceQuotasBackend.get_service_quota = get_service_quota


def _quota(backend: Any, code: str) -> dict[str, Any]:
    name, value = _QUOTAS[code]
    granted: dict[str, float] = backend.__dict__.setdefault("granted", {})
    return {"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": name, "Value": granted.get(code, value)}


def request_service_quota_increase(response: ServiceQuotasResponse) -> str:
    asked = json.loads(response.body)
    _quota(response.backend, asked["QuotaCode"])
    response.backend.granted[asked["QuotaCode"]] = asked["DesiredValue"]
    return json.dumps({"RequestedQuota": {**asked, "Status": "APPROVED"}})


def _of(response: EC2Response) -> dict[str, dict[str, Any]]:
    return _reservations.setdefault((response.current_account, response.region), {})


def create_capacity_reservation(response: EC2Response) -> ActionResult:
    count = int(response._get_param("InstanceCount"))
    zone = response._get_param("AvailabilityZone")
    ends = response._get_param("EndDate")
    zones = ec2_backends[response.current_account][response.region].describe_availability_zones()
    reservation = {
        "CapacityReservationId": f"cr-{mock_random.get_random_hex(17)}",
        "InstanceType": response._get_param("InstanceType"),
        "AvailabilityZone": zone,
        "AvailabilityZoneId": next(one.zone_id for one in zones if one.name == zone),
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "State": "active",
        "EndDate": ends,
        "InstanceMatchCriteria": response._get_param("InstanceMatchCriteria", "open"),
        "ReservationType": "capacity-block" if ends else "default",
    }
    _of(response)[reservation["CapacityReservationId"]] = reservation
    return ActionResult({"CapacityReservation": reservation})


def describe_capacity_reservations(response: EC2Response) -> ActionResult:
    numbers = response._get_param("CapacityReservationIds", [])
    found = [one for number, one in _of(response).items() if not numbers or number in numbers]
    return ActionResult({"CapacityReservations": found})
