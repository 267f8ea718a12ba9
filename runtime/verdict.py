"""What one check of the preflight found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    verdict: Verdict
    seen: str
    fix: str = ""

    @property
    def ok(self) -> bool:
        """A warning does not keep an engine from starting."""
        return self.verdict is not Verdict.FAIL

    @property
    def line(self) -> str:
        fix = f". fix: {self.fix}" if self.fix else ""
        return f"{self.verdict.value}  {self.name:<14} {self.seen.rstrip('.')}{fix}"


def passed(name: str, seen: str) -> Result:
    return Result(name, Verdict.PASS, seen)


def warned(name: str, seen: str, fix: str) -> Result:
    return Result(name, Verdict.WARN, seen, fix)


def failed(name: str, seen: str, fix: str) -> Result:
    return Result(name, Verdict.FAIL, seen, fix)
