"""The parts of a recurrent model, for whole layers and for compact ones that lack some rows of some matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbiad.arrays import Params
from fedbiad.models.base import Kept


def word_vectors(table: Tensor, tokens: Tensor, words: Tensor | None, vocabulary: int) -> Tensor:
    """The vectors of tokens [clients, ...]; with `words` [clients, kept] the table has only those, the others are 0.

    Indexing (not a flat look-up) so that a token out of range raises instead of reading another client's table.
    """
    clients = torch.arange(len(tokens)).view(-1, *[1] * (tokens.dim() - 1))
    if words is None:
        return table[clients, tokens]
    kept = words.shape[1]
    place = torch.full((len(table), vocabulary), kept).scatter_(1, words, torch.arange(kept).expand(words.shape))
    with_zero = torch.cat([table, table.new_zeros(len(table), 1, table.shape[2])], dim=1)
    return with_zero[clients, place[clients, tokens]]


def lstm_layer(
    params: Params, name: str, inputs: Tensor, state: tuple[Tensor, Tensor], kept: Kept
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer over all time steps: its outputs [clients, time, batch, units] and its last state.

    A gate's row of W_ih or W_hh that is not there adds nothing to the gate's pre-activation.
    """
    h, c = state
    given = _given(params, name, inputs.flatten(1, 2), kept.get(f"{name}.weight_ih")).view(*inputs.shape[:3], -1)
    recurrent, rows = params[f"{name}.weight_hh"].transpose(1, 2), kept.get(f"{name}.weight_hh")
    places = None if rows is None else rows[:, None].expand(-1, h.shape[1], -1)
    outputs = []
    for now in given.unbind(1):
        if places is None:
            gates = torch.baddbmm(now, h, recurrent)
        else:
            gates = now.scatter_add(2, places, torch.bmm(h, recurrent))
        i, f, g, o = gates.chunk(4, dim=2)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, dim=1), (h, c)


def _given(params: Params, name: str, inputs: Tensor, rows: Tensor | None) -> Tensor:
    """What the gates get from the layer below and their biases [clients, time x batch, gates]."""
    bias = (params[f"{name}.bias_ih"] + params[f"{name}.bias_hh"]).unsqueeze(1)
    weight = params[f"{name}.weight_ih"].transpose(1, 2)
    if rows is None:
        return torch.baddbmm(bias, inputs, weight)
    places = rows[:, None].expand(-1, inputs.shape[1], -1)
    return bias.expand(-1, inputs.shape[1], -1).scatter_add(2, places, torch.bmm(inputs, weight))
