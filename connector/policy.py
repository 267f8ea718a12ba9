"""Which blocks of a handle may be used for a prompt. Pure: no vLLM object, no I/O."""

from __future__ import annotations

from connector.digest import common_blocks
from connector.handle import Cover, Refusal


def verified_blocks(prompt: Cover, cover: Cover) -> int | Refusal:
    """Prefill: the leading blocks of decode's handle that hold exactly this prompt's tokens."""
    if cover.block_size != prompt.block_size:
        return Refusal.BLOCK_SIZE
    return common_blocks(prompt.digests, cover.digests) or Refusal.NOTHING_VERIFIED


def same_prompt(prompt: Cover, cover: Cover) -> Refusal | None:
    """Decode: it takes prefill's blocks only when prefill computed this very prompt, to its last token."""
    if cover.block_size != prompt.block_size:
        return Refusal.BLOCK_SIZE
    if cover.tokens != prompt.tokens or cover.tail != prompt.tail:
        return Refusal.OTHER_PROMPT
    return None
