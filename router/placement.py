"""Choice of engines. Pure: the table in, nodes out. Only engines of one build understand each other's blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from router.discovery import DECODE, PREFILL
from router.nodes import Node

# English text in common tokenizers; only the order of engines by load depends on it.
_BYTES_PER_TOKEN = 4


class Pair(NamedTuple):
    prefill: Node
    decode: Node


def estimated_tokens(body_bytes: int) -> int:
    return max(1, body_bytes // _BYTES_PER_TOKEN)


def choose_pair(
    prefill: Sequence[Node], decode: Sequence[Node], home: Node | None, avoid: Collection[Node] = ()
) -> Pair | None:
    """A prefill and a decode engine of one build, None when no build has both.

    The conversation's own decode engine `home` while it serves, else one of its build, which can read what `home` holds,
    else the one with the fewest open requests. Engines to avoid come last.
    """
    builds = {node.build for node in decode if node.serving}
    prefills = {build: node for build in builds if (node := choose_prefill(prefill, build, avoid)) is not None}
    pairs = [Pair(prefills[node.build], node) for node in decode if node.serving and node.build in prefills]
    return min(
        pairs,
        key=lambda pair: (
            (pair.prefill in avoid) + (pair.decode in avoid),
            *_distance(pair.decode, home),
            pair.decode.open_requests,
            pair.prefill.open_tokens,
        ),
        default=None,
    )


def choose_prefill(nodes: Iterable[Node], build: str, avoid: Collection[Node] = ()) -> Node | None:
    """The serving engine of `build` with the fewest prompt tokens outstanding; one to avoid only when there is no other."""
    serving = [node for node in nodes if node.serving and node.build == build]
    return min(serving, key=lambda node: (node in avoid, node.open_tokens, node.open_requests), default=None)


def choose_decode(nodes: Iterable[Node], build: str, home: Node | None, avoid: Collection[Node] = ()) -> Node | None:
    """The serving decode engine of `build` for blocks that a prefill engine of it holds, chosen as in a pair."""
    serving = [node for node in nodes if node.serving and node.build == build]
    return min(serving, key=lambda node: (node in avoid, *_distance(node, home), node.open_requests), default=None)


def _distance(node: Node, home: Node | None) -> tuple[bool, bool]:
    return (node is not home, home is not None and node.build != home.build)


def lacking_roles(prefill: Iterable[Node], decode: Iterable[Node]) -> list[str]:
    """The roles without a serving engine."""
    return [role for role, nodes in ((PREFILL, prefill), (DECODE, decode)) if not any(node.serving for node in nodes)]


def lacking_builds(prefill: Iterable[Node], decode: Iterable[Node]) -> list[str]:
    """What would make a pair of each build that has a serving engine; empty when some build has both."""
    builds = {
        role: {node.build for node in nodes if node.serving} for role, nodes in ((PREFILL, prefill), (DECODE, decode))
    }
    if builds[PREFILL] & builds[DECODE]:
        return []
    return [
        f"{missing} of {f'build {build}' if build else 'no build'}"
        for missing, there in ((DECODE, PREFILL), (PREFILL, DECODE))
        for build in sorted(builds[there])
    ]
