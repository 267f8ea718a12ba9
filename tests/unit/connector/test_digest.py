from hypothesis import given
from hypothesis import strategies as st

from connector import digest

TOKENS = st.lists(st.integers(0, 5), max_size=60)
BLOCK_SIZES = st.integers(1, 9)


def blocks_in_common(left: list[int], right: list[int], block_size: int) -> int:
    """The definition, token by token: what the digests must find without seeing the tokens."""
    blocks = 0
    while True:
        end = (blocks + 1) * block_size
        if end > min(len(left), len(right)) or left[:end] != right[:end]:
            return blocks
        blocks += 1


def chain(
    tokens: list[int], block_size: int, salt: str | None = None, **kwargs: dict[int, bytes]
) -> tuple[bytes, bytes]:
    return digest.chain(tokens, block_size, digest.seed(block_size, salt, None), **kwargs)


@given(TOKENS, TOKENS, TOKENS, BLOCK_SIZES)
def test_common_blocks_is_the_longest_common_prefix_in_whole_blocks(
    shared: list[int], left: list[int], right: list[int], block_size: int
) -> None:
    left, right = shared + left, shared + right
    found = digest.common_blocks(chain(left, block_size)[0], chain(right, block_size)[0])
    assert found == blocks_in_common(left, right, block_size)


@given(TOKENS, TOKENS, BLOCK_SIZES)
def test_tail_is_equal_exactly_when_all_tokens_are(left: list[int], right: list[int], block_size: int) -> None:
    assert (chain(left, block_size)[1] == chain(right, block_size)[1]) == (left == right)


def test_other_salt_shares_nothing() -> None:
    tokens = list(range(64))
    assert digest.common_blocks(chain(tokens, 16, "tenant-a")[0], chain(tokens, 16, "tenant-b")[0]) == 0


def test_salt_and_adapter_do_not_run_into_each_other() -> None:
    assert digest.seed(16, "ab", "c") != digest.seed(16, "a", "bc")


def test_an_image_changes_its_block_and_all_later_ones_only() -> None:
    tokens = list(range(64))
    plain, with_image = chain(tokens, 16)[0], chain(tokens, 16, extras={2: b"image-1"})[0]
    assert digest.common_blocks(plain, with_image) == 2
    assert digest.common_blocks(with_image, chain(tokens, 16, extras={2: b"image-2"})[0]) == 2


def test_an_image_in_the_partial_block_changes_the_tail() -> None:
    tokens = list(range(20))
    assert chain(tokens, 16)[1] != chain(tokens, 16, extras={1: b"image"})[1]
