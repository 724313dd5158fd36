"""Signs told by the signs before them: changes of a layer are mostly one number a row times one a column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import varint_bits
from fedbiad.coding.range_coder import WHOLE, Coder, Table, Words, part_at, put, state_of, table, take
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source
from fedbiad.compiling import strict
from fedbiad.errors import WireError

Marks = npt.NDArray[np.uint8]

CONTEXTS = 15
"""What the signs before tell about the next one: five kinds of evidence, each for, without or against the row's."""
SUREST = 3
HEAVIEST = 8
"""Votes beyond these count as these."""
SURE = 16
"""No sign is taken to be more likely than 16 to 1."""
_WHOLE = np.uint64(WHOLE)


def put_signs(sink: Sink, contexts: Marks, agrees: Marks) -> None:
    """Write how often each context agrees and not, then the agreements in the order of the entries."""
    counts = _agreements(contexts, agrees)
    sink.varint(*counts.ravel().tolist())
    sink.run(_encode, len(contexts), contexts, agrees, counts)


def get_signs(source: Source, positions: IntArray, columns: int) -> Marks:
    """Read the signs of the entries of a matrix."""
    left, counts = len(positions), np.zeros((CONTEXTS, 2), dtype=np.int64)
    for context in range(CONTEXTS):
        for other in range(2):
            counts[context, other] = source.varint("the signs of a context", left)
            left -= int(counts[context, other])
    if left:
        raise WireError(f"{left} signs are missing")
    positive, found = np.empty(len(positions), dtype=np.uint8), np.zeros((CONTEXTS, 2), dtype=np.int64)
    source.run(_decode, positions, columns, counts, positive, found)
    if not np.array_equal(found, counts):
        raise WireError("signs do not fit their contexts")
    return positive


@strict
def signs_bits(contexts: Marks, agrees: Marks) -> float:
    """About how many bits they take."""
    bits = 0.0
    for expected, other in _agreements(contexts, agrees):
        weights = _chances(expected, other)
        total = weights[0] + weights[1]
        bits += expected * np.log2(total / weights[0]) + other * np.log2(total / weights[1])
        bits += varint_bits(expected) + varint_bits(other)
    return bits


@strict
def _agreements(contexts: Marks, agrees: Marks) -> IntArray:
    """How often the expected sign came in each context, and how often the other [contexts, 2]."""
    counts = np.zeros((CONTEXTS, 2), dtype=np.int64)
    for i in range(len(contexts)):
        counts[contexts[i], 1 - agrees[i]] += 1
    return counts


@strict
def _chances(expected: int, other: int) -> tuple[float, float]:
    """Weights of the expected and the other sign, none below a sixteenth."""
    return float(max(expected, other // SURE + 1)), float(max(other, expected // SURE + 1))


@strict
def _tables(counts: IntArray) -> Table:
    """A table for every context [contexts, 3]."""
    starts = np.empty((CONTEXTS, 3), dtype=np.uint64)
    for context in range(CONTEXTS):
        starts[context] = table(np.array(_chances(counts[context, 0], counts[context, 1])))
    return starts


@strict
def _encode(coder: Coder, words: Words, contexts: Marks, agrees: Marks, counts: IntArray) -> None:
    lower, span, count = state_of(coder)
    tables = _tables(counts)
    for i in range(len(contexts)):
        starts, other = tables[contexts[i]], 1 - np.int64(agrees[i])
        lower, span, count = put(lower, span, count, words, starts[other], starts[other + 1] - starts[other])
    coder[0], coder[1], coder[2] = lower, span, count


# ---------------------------------------------------------------------- what they tell


@strict
def _context(vote: int, row: int, column: int) -> tuple[int, bool]:
    """The context of the next sign and whether plus is expected.

    `vote`: how often the row so far agreed with the signs its columns had, less how often not; `row` and `column`: the
    sums of signs so far. What was learned of the column counts first, then the row.
    """
    told = np.sign(column) * (np.sign(vote) if vote != 0 else 1)
    strength = 0 if told == 0 else 1 + min(abs(vote), SUREST)
    expected = told if told != 0 else np.sign(row)
    if expected == 0:
        return 1, True
    return 3 * strength + int(np.sign(row) * expected) + 1, expected > 0


@strict
def tell_signs(rows: IntArray, columns: IntArray, positive: Marks, width: int) -> tuple[Marks, Marks]:
    """For every entry of a matrix, in order, its context and whether its sign is the expected one.

    After each row its signs are added to the columns' votes, turned around if the row disagrees with them: changes of
    a layer are mostly one number a row times one a column.
    """
    contexts, agrees = np.zeros(len(rows), dtype=np.uint8), np.zeros(len(rows), dtype=np.uint8)
    votes = np.zeros(width, dtype=np.int64)
    first = 0
    while first < len(rows):
        last, vote, row = first, 0, 0
        while last < len(rows) and rows[last] == rows[first]:
            column = votes[columns[last]]
            context, plus = _context(vote, row, column)
            contexts[last], agrees[last] = context, plus == (positive[last] == 1)
            sign = 1 if positive[last] else -1
            vote += sign * np.sign(column)
            row += sign
            last += 1
        _learn(columns[first:last], positive[first:last], votes)
        first = last
    return contexts, agrees


@strict
def _decode(
    coder: Coder, words: Words, positions: IntArray, width: int, counts: IntArray, positive: Marks, found: IntArray
) -> bool:
    """The inverse of `tell_signs`, the agreements read on the way; how often each came is `found`."""
    above, span, count = state_of(coder)
    tables, votes = _tables(counts), np.zeros(width, dtype=np.int64)
    columns = positions % width
    first = 0
    while first < len(positions):
        last, vote, row, end = first, 0, 0, (positions[first] // width + 1) * width
        while last < len(positions) and positions[last] < end:
            column = votes[columns[last]]
            context, plus = _context(vote, row, column)
            part, starts = part_at(above, span), tables[context]
            if part >= _WHOLE:
                return False
            other = 1 if part >= starts[1] else 0
            above, span, count = take(above, span, count, words, starts[other], starts[other + 1] - starts[other])
            found[context, other] += 1
            positive[last] = plus == (other == 0)
            sign = 1 if positive[last] else -1
            vote += sign * np.sign(column)
            row += sign
            last += 1
        _learn(columns[first:last], positive[first:last], votes)
        first = last
    coder[0], coder[1], coder[2] = above, span, count
    return True


@strict
def _learn(columns: IntArray, positive: Marks, votes: IntArray) -> None:
    agreement = 0
    for i in range(len(columns)):
        vote = min(max(votes[columns[i]], -HEAVIEST), HEAVIEST)
        agreement += vote if positive[i] else -vote
    turned = agreement < 0
    for i in range(len(columns)):
        votes[columns[i]] += 1 if (positive[i] == 1) != turned else -1
