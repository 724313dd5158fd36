"""How loops are compiled: `strict` gives the same bits wherever it is used, `fast` may reorder sums.

What was compiled is kept for the next run. Parts become one function with their caller, so what a function was compiled
from may stand in any file of the package: it is compiled anew after a change of one of them, not of its own alone.

LLVM keeps to 256 bits on processors of Intel whose predecessors slowed down at 512. Those that know bfloat16 do not:
there the kernel of local training is faster with the whole width, so it is asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
from numba.core import caching

_features = llvm.get_host_cpu_features()
if _features.get("avx512bf16") and "NUMBA_CPU_FEATURES" not in os.environ:
    settings: Any = numba.config
    settings.CPU_NAME = llvm.get_host_cpu_name()
    settings.CPU_FEATURES = f"{_features.flatten()},-prefer-256-bit"
WIDE = bool(_features.get("avx512f"))
"""Whether there are 32 registers of 512 bits."""

Loop = TypeVar("Loop", bound=Callable[..., Any])


def _sources() -> str:
    """A hash of all files of the package that have to do with compiled code."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        content = path.read_bytes()
        if b"compil" in content or b"numba" in content:
            found.update(content)
    return found.hexdigest()


SOURCES = _sources()


class _OfPackage:
    """Where compiled code is kept as numba does it, for as long as `SOURCES` stays the same."""

    def get_source_stamp(self) -> str:
        """What is compared with that of the code that was kept."""
        return SOURCES


class AskedFor(_OfPackage, caching.UserProvidedCacheLocator):
    """In NUMBA_CACHE_DIR."""


class BesideSources(_OfPackage, caching.InTreeCacheLocator):
    """Where the package is, if it can be written to."""


class OfUser(_OfPackage, caching.UserWideCacheLocator):
    """Else among the user's own files."""


def _compiled(**options: Any) -> Callable[[Loop], Loop]:
    def decorate(loop: Loop) -> Loop:
        settings: Any = numba.config
        before = settings.CACHE_LOCATOR_CLASSES
        settings.CACHE_LOCATOR_CLASSES = ",".join(
            f"{__name__}.{kind.__name__}" for kind in (AskedFor, BesideSources, OfUser)
        )
        try:
            return cast("Loop", numba.njit(cache=True, nogil=True, **options)(loop))
        finally:
            settings.CACHE_LOCATOR_CLASSES = before

    return decorate


# infinities and NaN must stay visible
_fast: Any = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}
strict = _compiled()
fast = _compiled(**_fast)
strict_part = _compiled(forceinline=True)
part = _compiled(**_fast, forceinline=True)
"""Parts become one function with their caller."""
