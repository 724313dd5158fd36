"""Damaged messages: none is accepted; with a checksum that fits, none breaks the reader or a promise.

`scripts/fuzz_wire.py` does the same 100,000 times, also guided by coverage.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wire_samples as samples
from wire_samples import Case, mutate, outcome, reseal

CASES = [case for case in samples.corpus() if len(case.data) < 3000]

KINDS = ["flip", "set", "insert", "delete", "cut"]
edit = st.tuples(st.sampled_from(KINDS), st.integers(0, 3000), st.binary(min_size=1, max_size=9))
edits = st.lists(edit, min_size=1, max_size=4)


def edited(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """`data` after these edits."""
    out = bytearray(data)
    for kind, place, piece in changes:
        at = place % (len(out) + 1)
        if kind == "flip" and out:
            out[at % len(out)] ^= 1 << piece[0] % 8
        elif kind == "set":
            out[at : at + len(piece)] = piece
        elif kind == "insert":
            out[at:at] = piece
        elif kind == "delete":
            del out[at : at + len(piece)]
        elif kind == "cut":
            del out[at:]
    return bytes(out)


@given(st.sampled_from(CASES), edits)
@settings(max_examples=1250, deadline=None)
def test_damaged_messages_are_refused(case: Case, changes: list[tuple[str, int, bytes]]) -> None:
    data = edited(case.data, changes)
    assert data == case.data or outcome(case, data) is not None


@given(st.sampled_from(CASES), edits)
@settings(max_examples=1250, deadline=None)
def test_forged_messages_break_nothing(case: Case, changes: list[tuple[str, int, bytes]]) -> None:
    outcome(case, reseal(edited(case.data, changes)))  # checks what is accepted


@pytest.mark.parametrize("sealed", [False, True])
def test_random_damage(sealed: bool) -> None:
    rng, genuine, accepted = np.random.default_rng(0), {case.data for case in CASES}, 0
    for i in range(1250):
        case, other = CASES[i % len(CASES)], CASES[int(rng.integers(len(CASES)))]
        data = mutate(case.data, other.data, rng)
        if data not in genuine:  # pieces of two messages may make up one of them
            accepted += outcome(case, reseal(data) if sealed else data) is None
    assert (accepted > 0) == sealed  # some forgeries are valid messages
