"""How loops are compiled: `strict` gives the same bits wherever it is used, `fast` may reorder sums.

LLVM keeps to 256 bits on processors of Intel whose predecessors slowed down at 512. Those that know bfloat16 do not:
there the kernel of local training takes half the time with the whole width, so it is asked for.
"""

from __future__ import annotations

import os
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba

_features = llvm.get_host_cpu_features()
if _features.get("avx512bf16") and "NUMBA_CPU_FEATURES" not in os.environ:
    settings: Any = numba.config
    settings.CPU_NAME = llvm.get_host_cpu_name()
    settings.CPU_FEATURES = f"{_features.flatten()},-prefer-256-bit"

strict = numba.njit(cache=True, nogil=True)
# infinities and NaN must stay visible
fast = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy")
