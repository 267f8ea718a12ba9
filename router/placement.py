"""Choice of engines. Pure: the table in, a node out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from router.nodes import Node

# English text in common tokenizers; only the order of engines by load depends on it.
_BYTES_PER_TOKEN = 4


def estimated_tokens(body_bytes: int) -> int:
    return max(1, body_bytes // _BYTES_PER_TOKEN)


def choose_prefill(nodes: Sequence[Node], avoid: Collection[Node] = ()) -> Node | None:
    """The healthy engine with the fewest prompt tokens outstanding; one to avoid only when there is no other."""
    healthy = [node for node in nodes if node.healthy]
    return min(healthy, key=lambda node: (node in avoid, node.open_tokens, node.open_requests), default=None)


def choose_decode(nodes: Sequence[Node], sticky: str | None, avoid: Collection[Node] = ()) -> Node | None:
    """The conversation's own engine while it is healthy, else the one with the fewest open requests."""
    healthy = [node for node in nodes if node.healthy]
    return min(healthy, key=lambda node: (node in avoid, node.name != sticky, node.open_requests), default=None)
