import logging
import time

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from runtime.metadata import MetadataError
from runtime.patience import insist, may_pass
from runtime.source import Unreachable, explain


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (refused("ThrottlingException"), True),
        (refused("InternalFailure", 503), True),
        (refused("SignatureDoesNotMatch", 403), True),
        (ConnectTimeoutError(endpoint_url="http://x"), True),
        (MetadataError("late"), True),
        (refused("AccessDenied", 403), False),
        (refused("ValidationError"), False),
    ],
)
def test_what_passes_is_tried_again_and_what_does_not_is_raised_at_once(error: Exception, passes: bool) -> None:
    left = [error, error]

    def call() -> str:
        if left:
            raise left.pop()
        return "done"

    assert may_pass(error) is passes
    if passes:
        assert insist(call, 5, 0.01) == "done"
    else:
        with pytest.raises(type(error)):
            insist(call, 5, 0.01)
        assert len(left) == 1


def test_patience_ends_and_the_same_fault_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def call() -> None:
        raise Unreachable("not there")

    begun = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(Unreachable, match="not there"):
        insist(call, 0.3, 0.02)
    assert 0.3 <= time.monotonic() - begun < 2 and caplog.text.count("not there") == 1


def test_a_wrong_clock_is_named() -> None:
    assert "chronyc" in explain(refused("SignatureDoesNotMatch", 403))
