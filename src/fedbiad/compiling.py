"""How loops are compiled: `strict` gives the same bits wherever it is used, `fast` may reorder sums.

LLVM keeps to 256 bits on processors of Intel whose predecessors slowed down at 512. Those that know bfloat16 do not:
there the kernel of local training is faster with the whole width, so it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba

_features = llvm.get_host_cpu_features()
if _features.get("avx512bf16") and "NUMBA_CPU_FEATURES" not in os.environ:
    settings: Any = numba.config
    settings.CPU_NAME = llvm.get_host_cpu_name()
    settings.CPU_FEATURES = f"{_features.flatten()},-prefer-256-bit"
WIDE = bool(_features.get("avx512f"))
"""Whether there are 32 registers of 512 bits."""

Loop = TypeVar("Loop", bound=Callable[..., Any])

_kept: Any = {"cache": True, "nogil": True}
# infinities and NaN must stay visible
_fast: Any = {**_kept, "fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}
strict = cast("Callable[[Loop], Loop]", numba.njit(**_kept))
fast = cast("Callable[[Loop], Loop]", numba.njit(**_fast))
strict_part = cast("Callable[[Loop], Loop]", numba.njit(**_kept, forceinline=True))
part = cast("Callable[[Loop], Loop]", numba.njit(**_fast, forceinline=True))
"""Parts become one function with their caller."""
