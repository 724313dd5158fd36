"""Clipping a client's gradient by its norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedbiad.models.base import Gradient, Outer, Rows

Grams = dict[int, Tensor]
"""The products of all pairs of rows of some tensors, by their id."""


def squared_norm(gradient: Gradient, known: Grams | None = None) -> Tensor:
    """||g||^2 of each client [clients]; of what was left unformed, from Gram matrices.

    A sum of outer products l_b r_b': sum_bc (l_b . l_c)(r_b . r_c).
    Rows v_b read at places p_b: sum_bc [p_b = p_c] v_b . v_c.
    `known`: where Gram matrices are kept for other gradients that have the same tensor in them.
    """
    known = {} if known is None else known
    if isinstance(gradient, Rows):
        same = gradient.places[:, :, None] == gradient.places[:, None, :]
        return (torch.bmm(gradient.values, gradient.values.transpose(1, 2)) * same).sum((1, 2))
    if isinstance(gradient, Outer):
        return (_gram(gradient.left, known) * _gram(gradient.right, known)).sum((1, 2))
    flat = gradient.flatten(1)
    return torch.bmm(flat[:, None], flat[:, :, None]).flatten()


def _gram(rows: Tensor, known: Grams) -> Tensor:
    if id(rows) not in known:
        known[id(rows)] = torch.bmm(rows, rows.transpose(1, 2))
    return known[id(rows)]


def clip_factor(squares: Iterable[Tensor], limit: float) -> Tensor:
    """min(1, limit / ||g||) of each client [clients], from the squared norms of its parts."""
    norm = torch.stack(list(squares)).sum(0).sqrt()
    return (limit / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
