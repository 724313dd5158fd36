"""The loops of a softmax over classes with a sample in every lane, written in the compiler's own language.

A loop over arrays of a few numbers spends more time on finding out how long they are than on the numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedbiad.training.products import LANES, loop, number, numbers, opened, operation, place, spread
from fedbiad.vector_math import EXPONENT_BIAS, HIGHEST, LN2_HIGH, LN2_LOW, LOG2_E, LOWEST, MANTISSA, SERIES


def _intrinsics() -> tuple[Any, Any, Any]:
    """e [classes, lanes], in the lanes from `at` on: scaled and shifted, then exponentials, then shares of them."""

    @intrinsic
    def scaled(context, e, scale, b, highest, at):  # type: ignore[no-untyped-def]
        """e <- scale e + b; the highest of each lane."""
        return types.void(e, scale, b, highest, at), _write_scaled

    @intrinsic
    def exponentials(context, e, highest, weight, at):  # type: ignore[no-untyped-def]
        """e <- exp(e - highest); their sum in each lane."""
        return types.void(e, highest, weight, at), _write_exponentials

    @intrinsic
    def shared(context, e, weight, at):  # type: ignore[no-untyped-def]
        """e <- e weight."""
        return types.void(e, weight, at), _write_shared

    return scaled, exponentials, shared


scaled, exponentials, shared = _intrinsics()


def _write_scaled(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    e, scale, b, highest, at = opened(context, builder, signature, arguments)
    lanes = _Lanes(builder, e, at)
    factor = lanes.spread(scale)

    def following(c: Any, values: list[Any]) -> list[Any]:
        shift = lanes.spread(builder.load(builder.gep(b.data, [c])))
        own = lanes.fmuladd(lanes.load(c), factor, shift)
        lanes.store(own, c)
        return [builder.select(builder.fcmp_ordered(">", own, values[0]), own, values[0])]

    lanes.put(highest, loop(builder, lanes.classes, 1, [lanes.constant(float("-inf"))], following)[0])
    return context.get_dummy_value()


def _write_exponentials(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    e, highest, weight, at = opened(context, builder, signature, arguments)
    lanes = _Lanes(builder, e, at)
    most = lanes.get(highest)

    def following(c: Any, values: list[Any]) -> list[Any]:
        own = lanes.exponential(builder.fsub(lanes.load(c), most))
        lanes.store(own, c)
        return [builder.fadd(values[0], own)]

    lanes.put(weight, loop(builder, lanes.classes, 1, [lanes.constant(0.0)], following)[0])
    return context.get_dummy_value()


def _write_shared(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    e, weight, at = opened(context, builder, signature, arguments)
    lanes = _Lanes(builder, e, at)
    factor = lanes.get(weight)

    def following(c: Any, values: list[Any]) -> list[Any]:
        lanes.store(builder.fmul(lanes.load(c), factor), c)
        return values

    loop(builder, lanes.classes, 1, [], following)
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
