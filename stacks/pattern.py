"""The values of a parameter as a regular expression, for Parameter Store's AllowedPattern."""

from __future__ import annotations

import math
import re

from runtime.parameters import NO_TIME, TIME_PATTERN, Kind, Parameter


def allowed_pattern(parameter: Parameter) -> str | None:
    """Anchored, in syntax that Python, JavaScript and Java share; None when any text will do.

    Exact for choices, flags (in their written-out form) and integers. Of a number's bounds the fractions are left to the
    schema: 0.01 passes where the minimum is 0.05.
    """
    if parameter.choices:
        return f"^({'|'.join(re.escape(choice) for choice in parameter.choices)})$"
    if parameter.kind is Kind.FLAG:
        return "^(true|false)$"
    if parameter.kind is Kind.TEXT:
        return None
    if parameter.kind is Kind.TIME:
        return f"^({NO_TIME}|{TIME_PATTERN})$"
    low, high = parameter.minimum, parameter.maximum
    if low < 0 or math.isinf(high):
        return "^-?[0-9]+$" if parameter.kind is Kind.INTEGER else r"^-?[0-9]+(\.[0-9]+)?$"
    if parameter.kind is Kind.INTEGER:
        return f"^({_whole(math.ceil(low), math.floor(high))})$"
    return _number(low, high)


def _number(low: float, high: float) -> str:
    first, last = math.floor(low), math.floor(high)
    if last == high:
        end = rf"{last}(\.0+)?"
        below = rf"({_whole(first, last - 1)})(\.[0-9]+)?|" if first < last else ""
        return f"^({below}{end})$"
    return rf"^(({_whole(first, last)})(\.[0-9]+)?)$"


def _whole(low: int, high: int) -> str:
    """Alternatives that match exactly the decimal integers `low` to `high` without leading zeros."""
    parts = []
    while low <= high:
        end = _block_end(low, high)
        parts.append(_digits(str(low), str(end)))
        low = end + 1
    return "|".join(parts)


def _block_end(low: int, high: int) -> int:
    """The last number of the longest block from `low` that one pattern covers: a digit range, then free digits."""
    best = low
    power = 1
    while low % power == 0 and power <= max(low, 1):
        digit = low // power % 10
        end = low + (9 - digit + 1) * power - 1
        if low == 0:
            return min(9, high)
        while end > high:
            end -= power
        if end >= low:
            best = max(best, end)
        power *= 10
    return best


def _digits(low: str, high: str) -> str:
    return "".join(a if a == b else f"[{a}-{b}]" for a, b in zip(low, high, strict=True))
