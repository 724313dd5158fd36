"""How long counts are, compiled."""

from __future__ import annotations

from fedbiad.compiling import strict


@strict
def length(count: int) -> int:
    """How many bits a count has."""
    bits = 0
    while count > 0:
        count >>= 1
        bits += 1
    return bits


@strict
def varint_bits(count: int) -> int:
    """How many bits a count takes when written: whole bytes of 7."""
    return 8 * max(-(-length(count) // 7), 1)
