from dataclasses import replace

import pytest

from scripts.turns import LOGPROB_TOLERANCE, Answer, counter, following
from tests.unit.scripts.server import serving

ANSWER = Answer("Paris.", ("Paris", "."), -0.25, 600, 0.5)

METRICS = """\
# HELP some_total Some.
# TYPE some_total counter
some_total{fate="stored",role="a"} 3.0
some_total{fate="stored",role="b"} 4.0
some_total{fate="taken",role="a"} 1e+02
some_total_more 7.0
plain_sum 0.125
"""


def test_the_same_answer_took_any_time_and_differs_by_rounding_only() -> None:
    assert ANSWER.same_as(replace(ANSWER, ttft=9.0, first_logprob=-0.25 + LOGPROB_TOLERANCE / 2))


@pytest.mark.parametrize(
    "other",
    [
        replace(ANSWER, tokens=("Paris", "!")),
        replace(ANSWER, tokens=("Paris",)),
        replace(ANSWER, first_logprob=-0.25 - 2 * LOGPROB_TOLERANCE),
        replace(ANSWER, first_logprob=float("nan")),
    ],
)
def test_another_answer(other: Answer) -> None:
    assert not ANSWER.same_as(other) and not other.same_as(ANSWER)


def test_following_keeps_the_history_and_leaves_the_old_list_alone() -> None:
    first = [{"role": "user", "content": "one"}]
    second = following(first, "two", "three")
    assert [(m["role"], m["content"]) for m in second] == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert len(first) == 1


def test_counter_sums_the_samples_with_these_labels_and_this_very_name() -> None:
    with serving({"/metrics": [(200, METRICS)]}) as url:
        assert counter(url, "some_total") == 107
        assert counter(url + "/", "some_total", fate="stored") == 7
        assert counter(url, "some_total", fate="stored", role="b") == 4
        assert counter(url, "plain_sum") == 0.125
        assert counter(url, "absent_total") == 0
