"""Log lines of a node's own programs, for the journal: ours from info up, those of libraries from warnings."""

from __future__ import annotations

import logging


def configure() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    for name in ("runtime", "__main__"):
        logging.getLogger(name).setLevel(logging.INFO)
