"""How the blocks of a round are cut along the tree of sums: twigs for CPUs, branches for nodes.

Both are powers of two of blocks, and begin at multiples of their size: so their sums are the tree's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedbiad.cohort import Cohort

TWIGS = 3
"""Twigs for each CPU: one that is done early finds another, and yet few sums are moved."""


@dataclass(frozen=True)
class Cut:
    """Blocks that one CPU trains one after another, and blocks that are added up on one node."""

    twig: int
    branch: int

    @classmethod
    def fitting(cls, blocks: int, cpus: Sequence[int]) -> Cut:
        """For nodes with so many CPUs: a few twigs for each CPU, and as many in a branch as a node has CPUs."""
        twig = _power(blocks // (TWIGS * sum(cpus)))
        return cls(twig, twig * _power(sum(cpus) // len(cpus)))

    def branches(self, blocks: Sequence[Cohort]) -> list[list[Sequence[Cohort]]]:
        """The twigs of every branch, in order."""
        return [list(_pieces(branch, self.twig)) for branch in _pieces(blocks, self.branch)]


def _power(at_most: int) -> int:
    """The largest power of two up to a number, at least 1."""
    return 1 << max(at_most.bit_length() - 1, 0)


def _pieces(blocks: Sequence[Cohort], size: int) -> Iterator[Sequence[Cohort]]:
    return (blocks[start : start + size] for start in range(0, len(blocks), size))
