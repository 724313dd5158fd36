"""The inner loop of products with strips, written in the compiler's own language.

Three rows of the result stay in registers from the first to the last column, which no loop over arrays brings about.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedbiad.compiling import WIDE

ROWS = 3
"""Of a strip."""


def _product(width: int) -> Any:
    """room[r, at : at + width] += sum over k of values[k, r] factor[columns[k], at : at + width], in the order of k.

    A number of the result does not depend on the width: each is a sum of its own, in that order.
    """

    @intrinsic
    def product(  # type: ignore[no-untyped-def]
        context, columns, values, start, stop, factor, room, at
    ):
        signature = types.void(columns, values, start, stop, factor, room, at)
        return signature, lambda *arguments: _write(width, *arguments)

    return product


WIDTHS = (128 if WIDE else 32, 16, 1)
"""Three times the first one fits into the registers of the processor; the others take what it leaves over."""
widest, narrow, single = (_product(width) for width in WIDTHS)


def _write(width: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    arrays = [
        context.make_array(kind)(context, builder, argument) if isinstance(kind, types.Array) else argument
        for kind, argument in zip(signature.args, arguments, strict=True)
    ]
    columns, values, start, stop, factor, room, at = arrays
    units = cgutils.unpack_tuple(builder, factor.shape)[1]  # type: ignore[no-untyped-call]
    scalar = factor.data.type.pointee
    bits = 32 if isinstance(scalar, ir.FloatType) else 64
    vector, integer = ir.VectorType(scalar, width), ir.IntType(64)
    add_product = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{width}f{bits}"
    )
    undefined = ir.Constant(vector, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)

    def vector_at(base: Any, row: Any) -> Any:
        place = builder.gep(base, [builder.add(builder.mul(row, units), at)])
        return builder.bitcast(place, vector.as_pointer())

    def number(value: int) -> Any:
        return ir.Constant(integer, value)

    places = [vector_at(room.data, number(r)) for r in range(ROWS)]
    before = builder.block
    begun = [builder.load(place, align=bits // 8) for place in places]
    loop, after = builder.append_basic_block("strip.loop"), builder.append_basic_block("strip.after")
    builder.cbranch(builder.icmp_signed("<", start, stop), loop, after)

    builder.position_at_end(loop)
    k = builder.phi(integer)
    sums = [builder.phi(vector) for _ in range(ROWS)]
    column = builder.zext(builder.load(builder.gep(columns.data, [k])), integer)
    row = builder.load(vector_at(factor.data, column), align=bits // 8)
    more = []
    for r, so_far in enumerate(sums):
        value = builder.load(builder.gep(values.data, [builder.add(builder.mul(k, number(ROWS)), number(r))]))
        first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        more.append(builder.call(add_product, [builder.shuffle_vector(first, undefined, everywhere), row, so_far]))
    following = builder.add(k, number(1))
    builder.cbranch(builder.icmp_signed("<", following, stop), loop, after)
    for phi, entry, back in zip([k, *sums], [start, *begun], [following, *more], strict=True):
        phi.add_incoming(entry, before)
        phi.add_incoming(back, loop)

    builder.position_at_end(after)
    done = [builder.phi(vector) for _ in range(ROWS)]
    for phi, place, entry, back in zip(done, places, begun, more, strict=True):
        phi.add_incoming(entry, before)
        phi.add_incoming(back, loop)
        builder.store(phi, place, align=bits // 8)
    return context.get_dummy_value()
