"""Counts the products and the bytes written of what torch is asked to do: amounts of work, not seconds.

The states of an LSTM and the norms of the dual form are compiled: their products are counted from what they are called
with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.models import states
from fedbiad.training import kernels

FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Where the two factors stand among the arguments of a product."""


class Work(TorchDispatchMode):
    """While active: `products` counts multiplications of matrix products, `written` bytes of results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0
        self.written = 0
        self._compiled = states.run, states.run_back
        self._forms = kernels.quadratic_forms

    def __enter__(self) -> Self:
        states.run, states.run_back = map(self._counted, self._compiled)
        kernels.quadratic_forms = self._counted_forms
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        states.run, states.run_back = self._compiled
        kernels.quadratic_forms = self._forms

    def _counted_forms(self, a: FloatArray, ends: IntArray, grams: IntArray) -> FloatArray:
        """Every client's Gram matrix with its A."""
        self.products += int(np.square(np.diff(ends, prepend=0)).sum()) * a.shape[1]
        return self._forms(a, ends, grams)

    def _counted(self, run: Callable[..., None]) -> Callable[..., None]:
        """Every time step and sequence is multiplied with the whole matrix that is there."""

        def counted(gates: FloatArray, recurrent: FloatArray, *rest: Any) -> None:
            self.products += recurrent.size * gates.shape[1] * gates.shape[2]
            run(gates, recurrent, *rest)

        return counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if name in FACTORS:
            left, right = (args[i] for i in FACTORS[name])
            self.products += math.prod(left.shape) * int(right.shape[-1])
        if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            inputs = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
            for leaf in tree_leaves(result):
                views = isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() in inputs
                if isinstance(leaf, Tensor) and not (views and not func._schema.is_mutable):
                    self.written += leaf.numel() * leaf.element_size()
        return result
