"""The inner loop of small products, written in the compiler's own language.

It keeps some rows of the result in registers from the first to the last term, which no loop over arrays brings about.
A number of the result is a sum of its own, in the order of the terms: it does not depend on what is computed beside it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedbiad.compiling import WIDE


def _product(rows: int, width: int) -> Any:
    """The rows of `into` from `row` on, in columns from `at` on, += sum over k < terms of coefficients times factors.

    The coefficient of row r in term k is coefficients[places[r] + k stride], flat; the factor is row k of `factors`,
    or `chosen[k]` of it if that is an array. If there is a `base` [columns], every row = base + the sum; if there is a
    `weight`, too, every row += weight x (base + the sum), rounded after each of the three.
    """

    @intrinsic
    def product(  # type: ignore[no-untyped-def]
        context, coefficients, places, stride, terms, factors, chosen, base, weight, into, row, at
    ):
        signature = types.void(coefficients, places, stride, terms, factors, chosen, base, weight, into, row, at)
        return signature, lambda *arguments: _write(rows, width, *arguments)

    return product


STRIP = 3
"""Rows of a strip: many columns, of which each is multiplied with a whole row of factors."""
TILE = 5
"""Rows of a tile: half as wide as a strip."""
WIDTHS = (128, 64, 16, 1) if WIDE else (32, 16, 8, 1)
"""What fits into the registers of the processor: three times the first, five times the second."""
strip_128, strip_16, strip_1 = (_product(STRIP, WIDTHS[i]) for i in (0, 2, 3))
tile_64, tile_16, tile_1 = (_product(TILE, width) for width in WIDTHS[1:])
row_64, row_16, row_1 = (_product(1, width) for width in WIDTHS[1:])


def _inner(rows: int, columns: int) -> Any:
    """into[row + r, column + c] = sum over k < terms of left[row + r, k] right[column + c, k].

    `terms` is a multiple of `LANES`; every sum goes the same way, whatever is computed beside it.
    """

    @intrinsic
    def inner(context, left, right, row, column, terms, into):  # type: ignore[no-untyped-def]
        signature = types.void(left, right, row, column, terms, into)
        return signature, lambda *arguments: _write_inner(rows, columns, *arguments)

    return inner


LANES = WIDTHS[2]
INNER = (2, 5)
"""Rows and columns of sums that are made side by side."""
inner_2_5, inner_1_1 = _inner(*INNER), _inner(1, 1)


def _write(rows: int, width: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    coefficients, places, stride, terms, factors, chosen, base, weight, into, row, at = (
        context.make_array(kind)(context, builder, argument) if isinstance(kind, types.Array) else argument
        for kind, argument in zip(signature.args, arguments, strict=True)
    )
    number = ir.IntType(64)
    scalar = factors.data.type.pointee
    size = 4 if isinstance(scalar, ir.FloatType) else 8
    vector = ir.VectorType(scalar, width)
    kind = ir.FunctionType(vector, [vector] * 3)
    add_product = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, kind, f"llvm.fmuladd.v{width}f{8 * size}"
    )
    undefined, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)

    def spread(value: Any) -> Any:
        return builder.shuffle_vector(builder.insert_element(undefined, value, first), undefined, everywhere)

    def vector_at(matrix: Any, row: Any) -> Any:
        columns = cgutils.unpack_tuple(builder, matrix.shape)[1]  # type: ignore[no-untyped-call]
        place = builder.gep(matrix.data, [builder.add(builder.mul(row, columns), at)])
        return builder.bitcast(place, vector.as_pointer())

    starts = [builder.load(builder.gep(places.data, [ir.Constant(number, r)])) for r in range(rows)]
    targets = [vector_at(into, builder.add(row, ir.Constant(number, r))) for r in range(rows)]
    starting = targets
    if isinstance(signature.args[6], types.Array):
        starting = [builder.bitcast(builder.gep(base.data, [at]), vector.as_pointer())] * rows
    begun = [builder.load(place, align=size) for place in starting]
    before = builder.block
    loop, after = builder.append_basic_block("product.loop"), builder.append_basic_block("product.after")
    builder.cbranch(builder.icmp_signed("<", ir.Constant(number, 0), terms), loop, after)

    builder.position_at_end(loop)
    k = builder.phi(number)
    sums = [builder.phi(vector) for _ in range(rows)]
    which = k
    if isinstance(signature.args[5], types.Array):
        which = builder.zext(builder.load(builder.gep(chosen.data, [k])), number)
    factor = builder.load(vector_at(factors, which), align=size)
    passed = builder.mul(k, stride)
    more = []
    for start, so_far in zip(starts, sums, strict=True):
        coefficient = builder.load(builder.gep(coefficients.data, [builder.add(start, passed)]))
        more.append(builder.call(add_product, [spread(coefficient), factor, so_far]))
    following = builder.add(k, ir.Constant(number, 1))
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)
    for phi, entry, back in zip([k, *sums], [ir.Constant(number, 0), *begun], [following, *more], strict=True):
        phi.add_incoming(entry, before)
        phi.add_incoming(back, loop)

    builder.position_at_end(after)
    done = [builder.phi(vector) for _ in range(rows)]
    for phi, entry, back in zip(done, begun, more, strict=True):
        phi.add_incoming(entry, before)
        phi.add_incoming(back, loop)
    for target, result in zip(targets, done, strict=True):
        if isinstance(signature.args[7], types.Float):
            added = builder.fadd(builder.load(target, align=size), builder.fmul(spread(weight), result))
            builder.store(added, target, align=size)
        else:
            builder.store(result, target, align=size)
    return context.get_dummy_value()


def _write_inner(rows: int, columns: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    left, right, row, column, terms, into = (
        context.make_array(kind)(context, builder, argument) if isinstance(kind, types.Array) else argument
        for kind, argument in zip(signature.args, arguments, strict=True)
    )
    number = ir.IntType(64)
    scalar = left.data.type.pointee
    size = 4 if isinstance(scalar, ir.FloatType) else 8
    vector = ir.VectorType(scalar, LANES)
    name = f"v{LANES}f{8 * size}"
    add_product = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.{name}"
    )
    add_up = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(scalar, [scalar, vector]), f"llvm.vector.reduce.fadd.{name}"
    )

    def place(matrix: Any, row: Any, column: Any) -> Any:
        width = cgutils.unpack_tuple(builder, matrix.shape)[1]  # type: ignore[no-untyped-call]
        return builder.gep(matrix.data, [builder.add(builder.mul(row, width), column)])

    def vectors(matrix: Any, first: Any, count: int, k: Any) -> list[Any]:
        places = (place(matrix, builder.add(first, ir.Constant(number, i)), k) for i in range(count))
        return [builder.load(builder.bitcast(at, vector.as_pointer()), align=size) for at in places]

    before = builder.block
    loop, after = builder.append_basic_block("inner.loop"), builder.append_basic_block("inner.after")
    builder.cbranch(builder.icmp_signed("<", ir.Constant(number, 0), terms), loop, after)

    builder.position_at_end(loop)
    k = builder.phi(number)
    sums = [builder.phi(vector) for _ in range(rows * columns)]
    lefts, rights = vectors(left, row, rows, k), vectors(right, column, columns, k)
    pairs = [(one, other) for one in lefts for other in rights]
    more = [builder.call(add_product, [*pair, so_far]) for pair, so_far in zip(pairs, sums, strict=True)]
    following = builder.add(k, ir.Constant(number, LANES))
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)
    nothing = ir.Constant(vector, [0.0] * LANES)
    for phi, entry, back in zip(
        [k, *sums], [ir.Constant(number, 0)] + [nothing] * len(sums), [following, *more], strict=True
    ):
        phi.add_incoming(entry, before)
        phi.add_incoming(back, loop)

    builder.position_at_end(after)
    for i, back in enumerate(more):
        total = builder.phi(vector)
        total.add_incoming(nothing, before)
        total.add_incoming(back, loop)
        more[i] = total
    for i, total in enumerate(more):
        at = (
            builder.add(first, ir.Constant(number, n))
            for first, n in zip((row, column), divmod(i, columns), strict=True)
        )
        builder.store(builder.call(add_up, [ir.Constant(scalar, 0.0), total], fastmath=("reassoc",)), place(into, *at))
    return context.get_dummy_value()
