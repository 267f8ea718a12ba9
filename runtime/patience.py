"""Calls of AWS and of instance metadata that fail for a while, as at boot: said again until they are heard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import ClientError

from runtime.metadata import MetadataError
from runtime.source import AWS_ERRORS, Unreachable, explain

logger = logging.getLogger(__name__)

_PAUSE_S = 5.0
_CLOCK = {"InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired", "RequestTimeTooSkewed"}
"""Also of a clock that chrony has not set yet."""
_BUSY = {"ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException"}

T = TypeVar("T")


def may_pass(error: Exception) -> bool:
    """Whether the same call may be answered some minutes later."""
    if not isinstance(error, ClientError):
        return True
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status >= 500 or error.response.get("Error", {}).get("Code", "") in _CLOCK | _BUSY


def insist(call: Callable[[], T], limit_s: float, pause_s: float = _PAUSE_S) -> T:
    """What `call` returns, as soon as it does. What it raises, when that does not pass by itself or `limit_s` is over."""
    end = time.monotonic() + limit_s
    said = ""
    while True:
        try:
            return call()
        except (*AWS_ERRORS, MetadataError, Unreachable) as error:
            if not may_pass(error) or time.monotonic() >= end:
                raise
            if said != (said := explain(error)):
                logger.warning("%s; tried again for %.0f s", said, end - time.monotonic())
        time.sleep(pause_s)
