"""The inner loop of small products, written in the compiler's own language.

It keeps some rows of the result in registers from the first to the last term, which no loop over arrays brings about.
A number of the result is a sum of its own, in the order of the terms: it does not depend on what is computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedbiad.compiling import WIDE

NUMBER = ir.IntType(64)


def _product(rows: int, width: int, packed: bool) -> Any:
    """Some rows of `into`, in columns from `at` on, += sum over k < terms of coefficients times factors.

    They are those from `row` on, or those `named` there in an array. The coefficient of row r in term k is
    coefficients[places[r] + k stride], flat; the factor is row k of `factors`, or `chosen[k]` of it if that is an
    array; the coefficient then is that of term chosen[k], unless they are `packed`, those of the chosen terms alone.

    If there is a `base` [columns], every row = base + the sum. If it has rows, they are those named: then rows of
    `into` from `row` on = its rows + the sum, or 0 where that is negative. If there is a `weight`, every row +=
    weight x (base + the sum), rounded after each of the three; if it has rows, they are a gate: only where those from
    `row` on are positive, rows named of `into` += base + the sum, one after another.
    """

    @intrinsic
    def product(  # type: ignore[no-untyped-def]
        context, coefficients, places, stride, terms, factors, chosen, base, weight, into, row, named, at
    ):
        signature = types.void(coefficients, places, stride, terms, factors, chosen, base, weight, into, row, named, at)
        return signature, lambda *arguments: _write(rows, width, packed, *arguments)

    return product


STRIP = 2
"""Rows of a strip: many columns, of which each is multiplied with a whole row of factors.

More rows would read factors less often, but multiply more background: columns in which one row alone differs from it.
"""
TILE = 5
"""Rows of a tile: half as wide as a strip."""
FEW = 4
"""Rows of a smaller tile: many batches are of four sequences, or of a multiple."""
WIDTHS = (128, 64, 16, 1) if WIDE else (32, 16, 8, 1)
"""What fits into the registers of the processor: twice the first, five times the second."""
strip_128, strip_64, strip_16, strip_1 = (_product(STRIP, width, packed=True) for width in WIDTHS)
tile_64, tile_16, tile_1 = (_product(TILE, width, packed=False) for width in WIDTHS[1:])
few_64 = _product(FEW, WIDTHS[1], packed=False)
row_64, row_16, row_1 = (_product(1, width, packed=False) for width in WIDTHS[1:])


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
QUARTER = 4
"""Lanes of 128 bits, between which numbers move more slowly than within."""
INNER = (2, 5)
"""Rows and columns of sums that are made side by side: no more sums of a row than lanes."""
inner_tile, inner_1_1 = _inner(*INNER), _inner(1, 1)


def _pointer() -> Any:
    """To numbers like those of the array `like`, at this address."""

    @intrinsic
    def pointer(context, address, like):  # type: ignore[no-untyped-def]
        kind = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]
        return kind(address, like), lambda context, builder, _, arguments: builder.inttoptr(
            arguments[0], context.get_value_type(kind)
        )

    return pointer


pointer = _pointer()


def _write(rows: int, width: int, packed: bool, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    coefficients, places, stride, terms, factors, chosen, base, weight, into, row, named, at = opened(
        context, builder, signature, arguments
    )
    *_, chosen_kind, base_kind, weight_kind, _, _, named_kind, _ = signature.args
    _, vector, size = numbers(factors, width)
    add_product = operation(builder, "fmuladd", vector, vector, [vector] * 3)
    zero = ir.Constant(vector, [0.0] * width)

    def vector_at(matrix: Any, row: Any) -> Any:
        return builder.bitcast(place(builder, matrix, row, at), vector.as_pointer())

    def number_at(array: Any, place: Any) -> Any:
        found = builder.load(builder.gep(array.data, [place]))
        return found if found.type == NUMBER else builder.zext(found, NUMBER)

    counted = [ir.Constant(NUMBER, r) for r in range(rows)]
    starts = [builder.load(builder.gep(places.data, [r])) for r in counted]
    following = [builder.add(row, r) for r in counted]
    names = [number_at(named, r) for r in following] if _rank(named_kind) else following
    entering = _rank(base_kind) == 2
    targets = [vector_at(into, r) for r in (following if entering else names)]
    starting = targets
    if entering:
        starting = [vector_at(base, r) for r in names]
    elif _rank(base_kind):
        starting = [builder.bitcast(builder.gep(base.data, [at]), vector.as_pointer())] * rows
    begun = [builder.load(start, align=size) for start in starting]

    def add_term(k: Any, sums: list[Any]) -> list[Any]:
        which = k
        if _rank(chosen_kind):
            which = number_at(chosen, k)
        factor = builder.load(vector_at(factors, which), align=size)
        passed = builder.mul(k if packed else which, stride)
        more = []
        for start, so_far in zip(starts, sums, strict=True):
            coefficient = builder.load(builder.gep(coefficients.data, [builder.add(start, passed)]))
            more.append(builder.call(add_product, [spread(builder, vector, coefficient), factor, so_far]))
        return more

    for r, target, total in zip(following, targets, loop(builder, terms, 1, begun, add_term), strict=True):
        result = total
        if entering:
            result = builder.select(builder.fcmp_ordered("<", total, zero), zero, total)
        elif _rank(weight_kind):
            gate = builder.load(vector_at(weight, r), align=size)
            passed = builder.select(builder.fcmp_ordered(">", gate, zero), total, zero)
            result = builder.fadd(builder.load(target, align=size), passed)
        elif isinstance(weight_kind, types.Float):
            result = builder.fadd(
                builder.load(target, align=size), builder.fmul(spread(builder, vector, weight), total)
            )
        builder.store(result, target, align=size)
    return context.get_dummy_value()


def _write_inner(rows: int, columns: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    left, right, row, column, terms, into = opened(context, builder, signature, arguments)
    _, vector, size = numbers(left, LANES)
    add_product = operation(builder, "fmuladd", vector, vector, [vector] * 3)

    def begun(matrix: Any, first: Any, count: int) -> list[Any]:
        zero = ir.Constant(NUMBER, 0)
        places = (place(builder, matrix, builder.add(first, ir.Constant(NUMBER, i)), zero) for i in range(count))
        return [unrelated(builder, at) for at in places]

    def vectors(rows: list[Any], k: Any) -> list[Any]:
        return [builder.load(builder.bitcast(builder.gep(at, [k]), vector.as_pointer()), align=size) for at in rows]

    lefts_begun, rights_begun = begun(left, row, rows), begun(right, column, columns)

    def add_terms(k: Any, sums: list[Any]) -> list[Any]:
        lefts, rights = vectors(lefts_begun, k), vectors(rights_begun, k)
        pairs = [(one, other) for one in lefts for other in rights]
        return [builder.call(add_product, [*pair, so_far]) for pair, so_far in zip(pairs, sums, strict=True)]

    nothing = [ir.Constant(vector, [0.0] * LANES)] * (rows * columns)
    sums = loop(builder, terms, LANES, nothing, add_terms)
    together = LANES // columns  # rows whose sums fit into the lanes of one vector
    for first in range(0, rows, together):
        totals = sums_of_lanes(builder, sums[first * columns : (first + together) * columns])
        for r in range(min(together, rows - first)):  # a row's lanes are its own: the first one would be before it
            at = builder.sub(column, ir.Constant(NUMBER, r * columns))
            target = place(builder, into, builder.add(row, ir.Constant(NUMBER, first + r)), at)
            store_lanes(builder, totals, range(r * columns, (r + 1) * columns), target)
    return context.get_dummy_value()


def sums_of_lanes(builder: Any, vectors: list[Any]) -> Any:
    """The sums of the lanes of each of at most `LANES` vectors, one after another in the first lanes of a vector.

    Two vectors become one of half as much each, until all are in one: first within quarters, then across. They are
    put together in ways that take the processor one instruction; a vector without another is its own partner.
    """
    quarters = range(0, LANES, QUARTER)
    in_turn, in_pairs = [0, LANES, 1, LANES + 1], [0, 1, LANES, LANES + 1]
    ways = [([q + i for q in quarters for i in pattern], 2) for pattern in (in_turn, in_pairs)]
    if LANES == 4 * QUARTER:  # the first half stays in its place, the second one's is taken from the other side
        ways.append(([*range(LANES // 2), *range(LANES + LANES // 2, 2 * LANES)], LANES // 2))
    ways.append(([source + q + i for source in (0, LANES) for q in quarters[::2] for i in range(QUARTER)], QUARTER))
    for first, apart in ways:
        second = [lane - lane % LANES + (lane % LANES + apart) % LANES for lane in first]
        pairs = [(vectors[n], vectors[min(n + 1, len(vectors) - 1)]) for n in range(0, len(vectors), 2)]
        vectors = [builder.fadd(*(shuffled(builder, *pair, lanes) for lanes in (first, second))) for pair in pairs]
    return vectors[0]


# ---------------------------------------------------------------------- what both are written with


def opened(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """The arguments, arrays as what has data and shape."""
    return [
        context.make_array(kind)(context, builder, argument) if isinstance(kind, types.Array) else argument
        for kind, argument in zip(signature.args, arguments, strict=True)
    ]


def spread(builder: Any, vector: Any, value: Any) -> Any:
    """A number in every lane of such a vector."""
    empty, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(builder.insert_element(empty, value, first), empty, everywhere)


def shuffled(builder: Any, one: Any, other: Any, lanes: Sequence[int]) -> Any:
    """These lanes of two vectors, counted on from one to the other."""
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def store_lanes(builder: Any, vector: Any, lanes: range, at: Any) -> None:
    """Only these lanes of a vector, as if all of them were stored from `at` on."""
    bits, size = (32, 4) if isinstance(vector.type.element, ir.FloatType) else (64, 8)
    if not WIDE:  # processors with masks of 256 bits alone take long to store by them
        some = shuffled(builder, vector, vector, lanes)
        first = builder.gep(at, [ir.Constant(NUMBER, lanes.start)])
        builder.store(some, builder.bitcast(first, some.type.as_pointer()), align=size)
        return
    pointer, flags = vector.type.as_pointer(), ir.VectorType(ir.IntType(1), vector.type.count)
    store = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module,
        ir.FunctionType(ir.VoidType(), [vector.type, pointer, ir.IntType(32), flags]),
        f"llvm.masked.store.v{vector.type.count}f{bits}.p0v{vector.type.count}f{bits}",
    )
    mask = ir.Constant(flags, [lane in lanes for lane in range(vector.type.count)])
    builder.call(store, [vector, builder.bitcast(at, pointer), ir.Constant(ir.IntType(32), size), mask])


def number(builder: Any, matrix: Any, axis: int) -> Any:
    """How long an array is along an axis."""
    return cgutils.unpack_tuple(builder, matrix.shape)[axis]  # type: ignore[no-untyped-call]


def place(builder: Any, matrix: Any, row: Any, column: Any) -> Any:
    """Where a number of a matrix stands."""
    return builder.gep(matrix.data, [builder.add(builder.mul(row, number(builder, matrix, 1)), column)])


def unrelated(builder: Any, pointer: Any) -> Any:
    """The same address, of which the compiler does not know how far from others it is: it would save registers.

    It then counts from one row to the next, and loads how far that is from memory wherever a row is read.
    """
    return builder.asm(ir.FunctionType(pointer.type, [pointer.type]), "", "=r,0", [pointer], side_effect=False)


def _rank(kind: Any) -> int:
    """How many dimensions an argument has; 0 if it is no array."""
    return kind.ndim if isinstance(kind, types.Array) else 0


def numbers(array: Any, width: int) -> tuple[Any, Any, int]:
    """The type of an array's numbers, of so many side by side, and the bytes of one."""
    scalar = array.data.type.pointee
    return scalar, ir.VectorType(scalar, width), 4 if isinstance(scalar, ir.FloatType) else 8


def operation(builder: Any, name: str, vector: Any, result: Any, arguments: list[Any]) -> Any:
    """An operation of the compiler's own on such vectors."""
    bits = 32 if isinstance(vector.element, ir.FloatType) else 64
    return cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(result, arguments), f"llvm.{name}.v{vector.count}f{bits}"
    )


def loop(
    builder: Any, terms: Any, by: int, begun: list[Any], following: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Values kept in registers from k = 0 up to `terms`, by `by`: what `following(k, values)` has made of them."""
    before, zero = builder.block, ir.Constant(NUMBER, 0)
    loop, after = builder.append_basic_block("product.loop"), builder.append_basic_block("product.after")
    builder.cbranch(builder.icmp_signed("<", zero, terms), loop, after)
    builder.position_at_end(loop)
    k, *values = [builder.phi(entry.type) for entry in (zero, *begun)]
    more = following(k, values)
    last = builder.block  # of what may be several
    next_k = builder.add(k, ir.Constant(NUMBER, by))
    builder.cbranch(builder.icmp_signed("<", next_k, terms), loop, after)
    builder.position_at_end(after)
    done = [builder.phi(entry.type) for entry in begun]
    for phis, entries, backs in (((k, *values), (zero, *begun), (next_k, *more)), (done, begun, more)):
        for phi, entry, back in zip(phis, entries, backs, strict=True):
            phi.add_incoming(entry, before)
            phi.add_incoming(back, last)
    return done
