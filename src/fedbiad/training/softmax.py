"""The loops of a softmax over classes with a sample in every lane, written in the compiler's own language.

A loop over arrays of a few numbers spends more time on finding out how long they are than on the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedbiad.products import (
    LANES,
    NUMBER,
    loop,
    number,
    numbers,
    opened,
    operation,
    place,
    shuffled,
    spread,
    sums_of_lanes,
)
from fedbiad.vector_math import EXPONENT_BIAS, HIGHEST, LN2_HIGH, LN2_LOW, LOG2_E, LOWEST, MANTISSA, SERIES

TOGETHER = 5
"""Classes whose lanes are added up side by side."""


def _intrinsics() -> tuple[Any, Any, Any]:
    """e [classes, lanes], in the lanes from `at` on: scaled and shifted, then exponentials, then shares of them.

    `goal` is the class of the sample in each lane, negative where there is none.
    """

    @intrinsic
    def scaled(context, e, scale, b, goal, highest, missed, at):  # type: ignore[no-untyped-def]
        """e <- scale e + b; the highest of each lane, and by how much it misses the goal."""
        return types.void(e, scale, b, goal, highest, missed, at), _write_scaled

    @intrinsic
    def exponentials(context, e, highest, goal, step, weight, share, at):  # type: ignore[no-untyped-def]
        """e <- exp(e - highest); their sum in each lane, and -step divided by it, or 0 where there is no sample."""
        return types.void(e, highest, goal, step, weight, share, at), _write_exponentials

    @intrinsic
    def shared(context, e, share, goal, step, b, scale):  # type: ignore[no-untyped-def]
        """e <- share e, and step more at the goal; b += its sum over all lanes; e then takes the scale on."""
        return types.void(e, share, goal, step, b, scale), _write_shared

    return scaled, exponentials, shared


scaled, exponentials, shared = _intrinsics()


def _write_scaled(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    e, scale, b, goal, highest, missed, at = opened(context, builder, signature, arguments)
    lanes = _Lanes(builder, e, at)
    factor, wanted = lanes.spread(scale), lanes.get_classes(goal)

    def following(c: Any, values: list[Any]) -> list[Any]:
        most, reached = values
        shift = lanes.spread(builder.load(builder.gep(b.data, [c])))
        own = lanes.fmuladd(lanes.load(c), factor, shift)
        lanes.store(own, c)
        more = builder.select(builder.fcmp_ordered(">", own, most), own, most)
        return [more, builder.select(lanes.equal(wanted, c), own, reached)]

    begun = [lanes.constant(float("-inf")), lanes.constant(0.0)]
    most, reached = loop(builder, lanes.classes, 1, begun, following)
    lanes.put(highest, most)
    lanes.put(missed, builder.fsub(most, reached))
    return context.get_dummy_value()


def _write_exponentials(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    e, highest, goal, step, weight, share, at = opened(context, builder, signature, arguments)
    lanes = _Lanes(builder, e, at)
    most, wanted = lanes.get(highest), lanes.get_classes(goal)

    def following(c: Any, values: list[Any]) -> list[Any]:
        own = lanes.exponential(builder.fsub(lanes.load(c), most))
        lanes.store(own, c)
        return [builder.fadd(values[0], own)]

    total = loop(builder, lanes.classes, 1, [lanes.constant(0.0)], following)[0]
    lanes.put(weight, total)
    empty = builder.icmp_signed("<", wanted, ir.Constant(wanted.type, [0] * LANES))
    part = builder.fdiv(builder.fneg(lanes.spread(step)), total)
    lanes.put(share, builder.select(empty, lanes.constant(0.0), part))
    return context.get_dummy_value()


def _write_shared(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    e, share, goal, step, b, scale = opened(context, builder, signature, arguments)
    _, vector, size = numbers(e, LANES)
    more, factor = spread(builder, vector, step), spread(builder, vector, scale)
    width, nothing = number(builder, e, 1), ir.Constant(vector, [0.0] * LANES)

    def of_classes(count: int) -> Callable[[Any, list[Any]], list[Any]]:
        def following(done: Any, values: list[Any]) -> list[Any]:
            classes = [builder.add(builder.add(values[0], done), ir.Constant(NUMBER, i)) for i in range(count)]

            def of_lanes(at: Any, totals: list[Any]) -> list[Any]:
                lanes = _Lanes(builder, e, at)
                own = [builder.fmul(lanes.load(c), lanes.get(share)) for c in classes]
                wanted = lanes.get_classes(goal)
                own = [
                    builder.select(lanes.equal(wanted, c), builder.fadd(value, more), value)
                    for c, value in zip(classes, own, strict=True)
                ]
                for c, value in zip(classes, own, strict=True):
                    lanes.store(builder.fmul(value, factor), c)
                return [builder.fadd(*pair) for pair in zip(totals, own, strict=True)]

            sums = sums_of_lanes(builder, loop(builder, width, LANES, [nothing] * count, of_lanes))
            bias = builder.gep(b.data, [classes[0]])
            summed = shuffled(builder, sums, sums, range(count))
            at = builder.bitcast(bias, summed.type.as_pointer())
            builder.store(builder.fadd(builder.load(at, align=size), summed), at, align=size)
            return values

        return following

    classes, zero = number(builder, e, 0), ir.Constant(NUMBER, 0)
    alone = builder.urem(classes, ir.Constant(NUMBER, TOGETHER))
    many = builder.sub(classes, alone)
    loop(builder, many, TOGETHER, [zero], of_classes(TOGETHER))
    loop(builder, alone, 1, [many], of_classes(1))
    return context.get_dummy_value()


class _Lanes:
    """The lanes from `at` on of every row of a matrix."""

    def __init__(self, builder: Any, matrix: Any, at: Any) -> None:
        self.builder, self.matrix, self.at = builder, matrix, at
        self.scalar, self.vector, self.size = numbers(matrix, LANES)
        self.classes = number(builder, matrix, 0)

    def constant(self, value: float | np.float32) -> Any:
        return ir.Constant(self.vector, [float(value)] * LANES)

    def spread(self, value: Any) -> Any:
        return spread(self.builder, self.vector, value)

    def fmuladd(self, one: Any, other: Any, more: Any) -> Any:
        return self.builder.call(self._named("fmuladd", 3), [one, other, more])

    def load(self, row: Any) -> Any:
        return self._load(place(self.builder, self.matrix, row, self.at))

    def store(self, value: Any, row: Any) -> None:
        self._store(value, place(self.builder, self.matrix, row, self.at))

    def get(self, array: Any) -> Any:
        return self._load(self.builder.gep(array.data, [self.at]))

    def get_classes(self, array: Any) -> Any:
        integers = ir.VectorType(array.data.type.pointee, LANES)
        pointer = self.builder.bitcast(self.builder.gep(array.data, [self.at]), integers.as_pointer())
        return self.builder.load(pointer, align=4)

    def equal(self, classes: Any, c: Any) -> Any:
        """Which of the lanes' classes are this one."""
        one = self.builder.trunc(c, classes.type.element)
        return self.builder.icmp_signed("==", classes, spread(self.builder, classes.type, one))

    def put(self, array: Any, value: Any) -> None:
        self._store(value, self.builder.gep(array.data, [self.at]))

    def exponential(self, x: Any) -> Any:
        """As in `vector_math`."""
        builder = self.builder
        if not isinstance(self.scalar, ir.FloatType):
            return builder.call(self._named("exp", 1), [x])
        small = builder.fcmp_ordered("<", x, self.constant(LOWEST))
        high = self.constant(HIGHEST)
        x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
        n = builder.call(self._named("floor", 1), [self.fmuladd(x, self.constant(LOG2_E), self.constant(0.5))])
        r = self.fmuladd(n, self.constant(-LN2_HIGH), x)
        r = self.fmuladd(n, self.constant(-LN2_LOW), r)
        series = self.constant(SERIES[0])
        for coefficient in SERIES[1:]:
            series = self.fmuladd(series, r, self.constant(coefficient))
        series = self.fmuladd(series, builder.fmul(r, r), builder.fadd(r, self.constant(1.0)))
        integers = ir.VectorType(ir.IntType(32), LANES)
        power = builder.add(builder.fptosi(n, integers), ir.Constant(integers, [EXPONENT_BIAS] * LANES))
        power = builder.bitcast(builder.shl(power, ir.Constant(integers, [MANTISSA] * LANES)), self.vector)
        return builder.select(small, self.constant(0.0), builder.fmul(series, power))

    def _named(self, name: str, count: int) -> Any:
        return operation(self.builder, name, self.vector, self.vector, [self.vector] * count)

    def _load(self, pointer: Any) -> Any:
        return self.builder.load(self.builder.bitcast(pointer, self.vector.as_pointer()), align=self.size)

    def _store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, self.builder.bitcast(pointer, self.vector.as_pointer()), align=self.size)
