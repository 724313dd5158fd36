"""Signs told by the signs before them: changes of a layer are mostly one number a row times one a column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import varint_bits
from fedbiad.coding.page import CONTEXT, MISSING, STREAM, UNFIT_SIGN, Marks, Page, get_count, put_count, trouble
from fedbiad.coding.range_coder import WHOLE, Coder, Table, Words, put, reaches, state_of, table, take
from fedbiad.compiling import strict

Bits = npt.NDArray[np.bool_]

CONTEXTS = 15
"""What the signs before tell about the next one: five kinds of evidence, each for, without or against the row's."""
SUREST = 3
HEAVIEST = 8
"""Votes beyond these count as these."""
SURE = 16
"""No sign is taken to be more likely than 16 to 1."""
_WHOLE = np.uint64(WHOLE)


@strict
def write_signs(page: Page, contexts: Marks, agrees: Marks) -> None:
    """Write how often each context agrees and not, then the agreements in the order of the entries."""
    counts = _agreements(contexts, agrees)
    for context in range(CONTEXTS):
        put_count(page, counts[context, 0])
        put_count(page, counts[context, 1])
    lower, span, count = state_of(page.coder)
    tables = _tables(counts)
    for i in range(len(contexts)):
        starts, other = tables[contexts[i]], 1 - np.int64(agrees[i])
        lower, span, count = put(lower, span, count, page.words, starts[other], starts[other + 1] - starts[other])
    page.coder[0], page.coder[1], page.coder[2] = lower, span, count


@strict
def read_signs(page: Page, positions: IntArray, width: int, positive: Bits) -> int:
    """Read the signs of the entries of a matrix; -1: they cannot be."""
    rest, counts = len(positions), np.zeros((CONTEXTS, 2), dtype=np.int64)
    for context in range(CONTEXTS):
        for other in range(2):
            counts[context, other] = get_count(page, CONTEXT, rest)
            if counts[context, other] < 0:
                return -1
            rest -= counts[context, other]
    if rest:
        return trouble(page, MISSING, 0, rest)
    found = np.zeros((CONTEXTS, 2), dtype=np.int64)
    if not _hear(page.coder, page.words, positions, width, counts, positive, found):
        return trouble(page, STREAM)
    return 0 if np.array_equal(found, counts) else trouble(page, UNFIT_SIGN)


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
    starts = np.empty((CONTEXTS, 3), dtype=np.uint32)
    for context in range(CONTEXTS):
        starts[context] = table(np.array(_chances(counts[context, 0], counts[context, 1])))
    return starts


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
def tell_signs(rows: IntArray, columns: IntArray, positive: Bits, width: int) -> tuple[Marks, Marks]:
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
            contexts[last], agrees[last] = context, plus == positive[last]
            sign = 1 if positive[last] else -1
            vote += sign * np.sign(column)
            row += sign
            last += 1
        _learn(columns[first:last], positive[first:last], votes)
        first = last
    return contexts, agrees


@strict
def _hear(
    coder: Coder, words: Words, positions: IntArray, width: int, counts: IntArray, positive: Bits, found: IntArray
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
            starts = tables[context]
            if reaches(above, span, _WHOLE):
                return False
            other = 1 if reaches(above, span, np.uint64(starts[1])) else 0
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
def _learn(columns: IntArray, positive: Bits, votes: IntArray) -> None:
    agreement = 0
    for i in range(len(columns)):
        vote = min(max(votes[columns[i]], -HEAVIEST), HEAVIEST)
        agreement += vote if positive[i] else -vote
    turned = agreement < 0
    for i in range(len(columns)):
        votes[columns[i]] += 1 if positive[i] != turned else -1
