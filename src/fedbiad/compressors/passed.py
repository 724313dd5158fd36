"""Which of some neighbours a mass ends at: the sums of all of them at once, written in the compiler's own language."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedbiad.products import numbers, opened, shuffled, spread

TOGETHER = 16
"""Neighbours that fight as one, until one of them is chosen."""


def _passed_by() -> Any:
    @intrinsic
    def passed_by(context, delta, first, sign, mass):  # type: ignore[no-untyped-def]
        """Of `TOGETHER` entries how many make up at most this mass with those before, entries of the other sign as 0.

        In float64, all sums at once: one after the other would take as long as many duels.
        """
        return types.int64(delta, first, sign, mass), _write_passed_by

    return passed_by


passed_by = _passed_by()


def _write_passed_by(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    delta, first, sign, mass = opened(context, builder, signature, arguments)
    scalar, vector, size = numbers(delta, TOGETHER)
    wide = ir.VectorType(ir.DoubleType(), TOGETHER)
    zero = ir.Constant(wide, [0.0] * TOGETHER)
    entries = builder.load(builder.bitcast(builder.gep(delta.data, [first]), vector.as_pointer()), align=size)
    if scalar != ir.DoubleType():
        entries = builder.fpext(entries, wide)
    signed = builder.fmul(entries, spread(builder, wide, builder.sitofp(sign, ir.DoubleType())))
    sums = builder.select(builder.fcmp_ordered(">", signed, zero), signed, zero)
    apart = 1
    while apart < TOGETHER:
        before = shuffled(builder, zero, sums, [TOGETHER + i - apart if i >= apart else i for i in range(TOGETHER)])
        sums, apart = builder.fadd(sums, before), 2 * apart
    passed = builder.fcmp_ordered("<=", sums, spread(builder, wide, mass))
    return builder.zext(builder.ctpop(builder.bitcast(passed, ir.IntType(TOGETHER))), ir.IntType(64))
