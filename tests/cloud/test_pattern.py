"""AllowedPattern against the schema's own check, over values on both sides of every bound."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from runtime.parameters import PARAMETERS, Apply, Kind, Parameter, ParameterError, Reader
from stacks.pattern import allowed_pattern


def parameter(kind: Kind, low: float, high: float, choices: tuple[str, ...] = ()) -> Parameter:
    return Parameter("p", kind, "", low, "A sentence.", (Reader.ROUTER,), Apply.LIVE, low, high, choices)


def matches(entry: Parameter, text: str) -> bool:
    pattern = allowed_pattern(entry)
    assert pattern is not None
    return re.search(pattern, text) is not None


@given(st.integers(0, 2_000_000), st.integers(0, 2_000_000), st.integers(0, 3_000_000))
@example(0, 0, 0)
@example(0, 9, 10)
@example(95, 1_005, 94)
@example(6, 86_400, 86_401)
def test_integers_are_exact(one: int, other: int, value: int) -> None:
    low, high = sorted((one, other))
    entry = parameter(Kind.INTEGER, low, high)
    for candidate in (value, low - 1, low, high, high + 1):
        assert matches(entry, str(candidate)) is (low <= candidate <= high)
    assert not matches(entry, f"0{high}")
    assert not matches(entry, f"{high}.5")


@given(st.integers(0, 999), st.integers(0, 99_999), st.decimals(0, 200_000, places=2, allow_nan=False))
def test_numbers_above_the_maximum_are_refused_and_values_within_pass(low: int, more: int, value: object) -> None:
    entry = parameter(Kind.NUMBER, low, low + more)
    text = str(value)
    assert matches(entry, text) is (low <= float(text) <= low + more)


def test_number_with_fractional_bounds() -> None:
    entry = parameter(Kind.NUMBER, 0.05, 2.5)
    assert all(matches(entry, text) for text in ("0.05", "1", "2.5", "2.50"))
    assert not any(matches(entry, text) for text in ("3", "3.0", "10", "-1", ".5", "1e3", "1."))


def test_parameters_without_finite_bounds_take_any_number() -> None:
    assert matches(parameter(Kind.INTEGER, -5, 5), "-5")
    assert matches(parameter(Kind.NUMBER, 0, float("inf")), "123456789.5")
    assert not matches(parameter(Kind.INTEGER, -5, 5), "1.5")


def test_choices_hold_no_wildcards() -> None:
    entry = parameter(Kind.TEXT, 0, 0, ("a.b", "c"))
    assert matches(entry, "a.b")
    assert not matches(entry, "axb")
    assert not matches(entry, "ca.b")


def test_every_bound_of_the_schema_fits_its_pattern() -> None:
    for entry in PARAMETERS:
        if entry.kind is not Kind.INTEGER:
            continue
        for value in (int(entry.minimum), int(entry.maximum), int(entry.minimum) - 1, int(entry.maximum) + 1):
            try:
                entry.parse(str(value))
            except ParameterError:
                assert not matches(entry, str(value)), (entry.name, value)
            else:
                assert matches(entry, str(value)), (entry.name, value)
