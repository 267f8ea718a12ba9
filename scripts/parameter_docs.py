"""`python -m scripts.parameter_docs`: writes docs/tune.md from the schema, which is the only place that knows a default."""

from __future__ import annotations

from pathlib import Path

from runtime.parameters import PARAMETERS, Kind, Parameter

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tune.md"

_HEAD = """# Tunables

Written by `python -m scripts.parameter_docs` from `runtime/parameters.py`; a test fails when the two differ.

Each is a flag of `python -m runtime.local`; those that the router reads are flags of `python -m router` too. An environment
variable `KVR_<NAME>` does the same, and a flag wins over it. A value outside the bounds, or one that does not fit another
value (`handle_ttl` has to be below `decoder_kv_blocks_ttl`), is refused at start with the fix.

| name | default | bounds | read by | applies | what it does |
|---|---|---|---|---|---|
"""


def page() -> str:
    return _HEAD + "".join(_row(parameter) for parameter in PARAMETERS)


def _row(parameter: Parameter) -> str:
    default = str(parameter.default).lower() if parameter.kind is Kind.FLAG else f"{parameter.default} {parameter.unit}"
    readers = ", ".join(reader.value for reader in parameter.readers)
    cells = (
        f"`{parameter.name}`",
        default.strip(),
        parameter.bounds,
        readers,
        parameter.apply.value,
        parameter.sentence,
    )
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
