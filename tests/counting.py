"""Counts the products and the bytes written of what torch is asked to do: amounts of work, not seconds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""Where the two factors stand among the arguments of a product."""


class Work(TorchDispatchMode):
    """While active: `products` counts multiplications of matrix products, `written` bytes of results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0
        self.written = 0

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
