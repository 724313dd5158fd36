"""What a processor knows of the bits of a word, for compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

Words = npt.NDArray[np.uint64]
BITS = 64
"""Of a word."""


def _counts() -> tuple[Any, Any]:
    """How many bits are set, and how many stand before the first that is; there must be one then."""

    @intrinsic
    def ones(context: Any, word: Any) -> Any:
        return types.int64(types.uint64), lambda context, builder, _, arguments: builder.ctpop(arguments[0])

    @intrinsic
    def before(context: Any, word: Any) -> Any:
        never = ir.Constant(ir.IntType(1), 1)  # is the word 0
        return types.int64(types.uint64), lambda context, builder, _, arguments: builder.cttz(arguments[0], never)

    return ones, before


bits_set, bits_before = _counts()
