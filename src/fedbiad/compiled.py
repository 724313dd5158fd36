"""Loops that cannot be written over whole arrays, compiled.

Compiled at first use and kept beside their source (or in the user's cache), so that later processes only load them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., Any])

compiled = cast("Callable[[Loop], Loop]", numba.njit(cache=True))
"""A function of arrays and numbers, as machine code."""
summing = cast("Callable[[Loop], Loop]", numba.njit(cache=True, fastmath={"reassoc", "nsz"}))
"""The same, with sums in the order that suits the machine."""
