"""What Ray's processes do: train the blocks of a twig, add the sums of a branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbiad.aggregation import SumTree, Total
from fedbiad.cohort import Cohort
from fedbiad.errors import RunError
from fedbiad.state import States
from fedbiad.transports.base import Updates
from fedbiad.transports.block import BlockTraining
from fedbiad.transports.packing import Arrays, Packed, arrays, tensors, unpack


@dataclass(frozen=True)
class Sums:
    """A total on its way."""

    moved: Arrays
    holders: Arrays
    weight: float
    known: Arrays
    blocks: int

    @classmethod
    def of(cls, total: Total, blocks: int) -> Sums:
        """A total, ready to travel."""
        return cls(arrays(total.moved), arrays(total.holders), total.weight, arrays(total.known), blocks)

    def total(self) -> Total:
        """The total, where it arrived."""
        return Total(tensors(self.moved), tensors(self.holders), self.weight, tensors(self.known))


_here: dict[str, BlockTraining] = {}
"""The run this process works for: unpacked once."""


def train_twig(
    packed: Packed, u: Arrays, cohorts: Sequence[Cohort], states: Sequence[States]
) -> tuple[list[Updates], list[States], Sums]:
    """Train blocks one after another and add them up: what is told of each, the states after it, and the sum."""
    torch.set_num_threads(1)
    if packed.key not in _here:
        _here.clear()
        _here[packed.key] = unpack(packed)
    training, received = _here[packed.key], tensors(u)
    told: list[Updates] = []
    after, tree, only = list[States](), SumTree(), None
    for cohort, before in zip(cohorts, states, strict=True):
        updates, changed = training.train(received, cohort, before)
        if updates.total is None:
            raise RunError("a block without sums")
        only = None if told else updates.total  # one alone travels as it is, in float32
        tree.push(updates.total)
        told.append(updates.without_sums())
        after.append(changed)
    return told, after, Sums.of(only or tree.finish(), len(cohorts))


def add_twigs(*sums: Sums) -> Sums:
    """The sums of consecutive twigs, added along the tree."""
    tree = SumTree()
    for part in sums:
        tree.push(part.total(), part.blocks)
    return Sums.of(tree.finish(), sum(part.blocks for part in sums))
