"""Clipping a client's gradient by its norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedbiad.models.base import Gradient, Outer, Rows


def squared_norm(gradient: Gradient) -> Tensor:
    """||g||^2 of each client [clients]; of what was left unformed, from Gram matrices.

    A sum of outer products l_b r_b': sum_bc (l_b . l_c)(r_b . r_c).
    Rows v_b read at places p_b: sum_bc [p_b = p_c] v_b . v_c.
    """
    if isinstance(gradient, Rows):
        same = gradient.places[:, :, None] == gradient.places[:, None, :]
        return (torch.bmm(gradient.values, gradient.values.transpose(1, 2)) * same).sum((1, 2))
    if isinstance(gradient, Outer):
        left = torch.bmm(gradient.left, gradient.left.transpose(1, 2))
        right = torch.bmm(gradient.right, gradient.right.transpose(1, 2))
        return (left * right).sum((1, 2))
    flat = gradient.flatten(1)
    return torch.bmm(flat[:, None], flat[:, :, None]).flatten()


def clip_factor(squares: Iterable[Tensor], limit: float) -> Tensor:
    """min(1, limit / ||g||) of each client [clients], from the squared norms of its parts."""
    norm = torch.stack(list(squares)).sum(0).sqrt()
    return (limit / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
