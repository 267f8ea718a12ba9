"""One question to whoever sits at the terminal."""

from __future__ import annotations

import sys


class NobodyThere(RuntimeError):
    """The text is what the user reads."""


def agreed(question: str, *, yes: bool) -> bool:
    """True for `yes` or an answer that begins with y. Raises `NobodyThere` when standard input is no terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise NobodyThere("standard input is no terminal, so nobody can be asked. hint: --yes goes on without")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
