"""Clipping a client's gradient by its norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedbiad.models.base import Outer


def squared_norm(gradient: Tensor | Outer) -> Tensor:
    """||g||^2 of each client [clients]; for a sum of outer products from the two Gram matrices, never formed."""
    if isinstance(gradient, Outer):
        left = torch.bmm(gradient.left, gradient.left.transpose(1, 2))
        right = torch.bmm(gradient.right, gradient.right.transpose(1, 2))
        return (left * right).sum((1, 2))
    return gradient.flatten(1).square().sum(1)


def clip_factor(squares: Iterable[Tensor], limit: float) -> Tensor:
    """min(1, limit / ||g||) of each client [clients], from the squared norms of its parts."""
    norm = torch.stack(list(squares)).sum(0).sqrt()
    return (limit / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
