"""The parts of a recurrent model with their gradients, for whole layers and for compact ones that lack some rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbiad.arrays import FloatArray, Params
from fedbiad.compiling import fast
from fedbiad.models.base import Gradients, Kept, Outer, Rows, linear
from fedbiad.models.heads import Head, Likelihood, losses_and_errors

LOGITS = 1 << 22
"""Logits computed at a time."""

Pair = tuple[Tensor, Tensor]
"""h and c of a layer, each [clients, batch, units]."""


def present_words(tokens: Tensor, words: Tensor | None, vocabulary: int) -> tuple[Tensor, Tensor | None]:
    """Where tokens [clients, n] stand in a table that has only `words` [clients, kept], and which do (None: all)."""
    if words is None:
        return tokens, None
    kept = words.shape[1]
    place = torch.full((len(words), vocabulary), kept).scatter_(1, words, torch.arange(kept).expand(words.shape))
    found = place.gather(1, tokens)
    there = found < kept
    return found * there, there


def word_vectors(table: Tensor, places: Tensor, there: Tensor | None) -> Tensor:
    """Rows of each client's table [clients, words, width] at places [clients, n]; 0 for words that are not there.

    Indexing (not a flat look-up) so that a token out of range raises instead of reading another client's table.
    """
    vectors = table[torch.arange(len(places))[:, None], places]
    return vectors if there is None else vectors * there.unsqueeze(2)


@dataclass(frozen=True)
class Trace:
    """What a layer's gradient needs of its forward pass: lists over time of [clients, batch, units] tensors."""

    inputs: Tensor  # [clients, time x batch, width]
    gates: list[tuple[Tensor, Tensor, Tensor, Tensor]]  # i, f, g, o after their non-linearities
    before: list[Pair]  # h and c a step begins with
    squashed: list[Tensor]  # tanh(c) after the step


def lstm_layer(params: Params, name: str, inputs: Tensor, state: Pair, kept: Kept) -> tuple[Tensor, Pair, Trace]:
    """One layer over all time steps: its outputs [clients, time, batch, units], its last state, and the trace.

    A gate's row of W_ih or W_hh that is not there adds nothing to the gate's pre-activation.
    """
    h, c = state
    flat = inputs.flatten(1, 2)
    given = _given(params, name, flat, kept.get(f"{name}.weight_ih")).view(*inputs.shape[:3], -1)
    recurrent, rows = params[f"{name}.weight_hh"].transpose(1, 2), kept.get(f"{name}.weight_hh")
    places = None if rows is None else rows[:, None].expand(-1, h.shape[1], -1)
    outputs: list[Tensor] = []
    trace = Trace(flat, [], [], [])
    units = h.shape[2]
    for now in given.unbind(1):
        if places is None:
            gates = torch.baddbmm(now, h, recurrent)
        else:
            gates = now.scatter_add(2, places, torch.bmm(h, recurrent))
        candidate = gates[:, :, 2 * units : 3 * units].tanh()
        i, f, _, o = gates.sigmoid().chunk(4, dim=2)  # all four at once is faster than three
        trace.before.append((h, c))
        c = torch.addcmul(f * c, i, candidate)
        squashed = c.tanh()
        h = o * squashed
        trace.gates.append((i, f, candidate, o))
        trace.squashed.append(squashed)
        outputs.append(h)
    return torch.stack(outputs, dim=1), (h, c), trace


def lstm_layer_gradients(
    params: Params, name: str, error: Tensor, trace: Trace, kept: Kept
) -> tuple[Tensor, Gradients]:
    """The gradient of a layer's inputs [clients, time, batch, width] and of its parameters.

    From that of its outputs [clients, time, batch, units], through time; nothing flows into the state it began with.
    """
    recurrent, rows = params[f"{name}.weight_hh"], kept.get(f"{name}.weight_hh")
    clients, time, batch, units = error.shape
    gates = error.new_empty(clients, time, batch, 4 * units)
    dh, dc = error.new_zeros(clients, batch, units), error.new_zeros(clients, batch, units)
    for t in range(time - 1, -1, -1):
        i, f, g, o = trace.gates[t]
        lstm_cell_gradient(
            i.numpy(), f.numpy(), g.numpy(), o.numpy(), trace.before[t][1].numpy(), trace.squashed[t].numpy(),
            error[:, t].numpy(), dh.numpy(), dc.numpy(), gates[:, t].numpy(),
        )  # fmt: skip
        dh = torch.bmm(_at(gates[:, t], rows), recurrent)
    gates = gates.flatten(1, 2)
    past = torch.stack([h for h, _ in trace.before], dim=1).flatten(1, 2)
    from_below = _at(gates, kept.get(f"{name}.weight_ih"))
    bias = gates.sum(1)
    found: Gradients = {
        f"{name}.weight_ih": Outer(from_below, trace.inputs), f"{name}.weight_hh": Outer(_at(gates, rows), past),
        f"{name}.bias_ih": bias, f"{name}.bias_hh": bias,
    }  # fmt: skip
    below = torch.bmm(from_below, params[f"{name}.weight_ih"])
    return below.view(*error.shape[:3], -1), found


def output_gradients(params: Params, read: Tensor, head: Head) -> tuple[Tensor, Tensor, Gradients]:
    """The output layer: each client's loss, the gradient of what it reads [clients, samples, width], its own gradients.

    With more samples than units its gradient is smaller than the logits: it is then formed, from a few samples at a
    time, and no more logits are ever there.
    """
    weight = params["output.weight"]
    clients, samples, width = read.shape
    if samples <= width or not isinstance(head, Likelihood):
        losses, error = losses_and_errors(head, linear(params, "output", read))
        own: Gradients = {"output.weight": Outer(error, read), "output.bias": error.sum(1)}
        return losses, torch.bmm(error, weight), own
    losses, bias = read.new_zeros(clients), torch.zeros_like(params["output.bias"])
    formed, back = torch.zeros_like(weight), torch.empty_like(read)
    at_a_time = max(LOGITS // (clients * weight.shape[1]), 64)
    for first in range(0, samples, at_a_time):
        part = read[:, first : first + at_a_time]
        logits = linear(params, "output", part)
        losses += head.part(logits, first)
        formed.baddbmm_(logits.transpose(1, 2), part)
        bias += logits.sum(1)
        back[:, first : first + at_a_time] = torch.bmm(logits, weight)
    return losses, back, {"output.weight": formed, "output.bias": bias}


@fast
def lstm_cell_gradient(
    input_gate: FloatArray, forget_gate: FloatArray, candidate: FloatArray, output_gate: FloatArray,
    before: FloatArray, squashed: FloatArray, error: FloatArray, dh: FloatArray, dc: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """One time step back: from the gradient of h (from above `error`, from later `dh`) and of c to that of the gates.

    All [clients, batch, units], the gates' gradient `found` four times as wide; `dc` becomes the earlier one's.
    """
    clients, batch, units = before.shape
    one = before.dtype.type(1)
    for k in range(clients):
        for r in range(batch):
            for j in range(units):
                i, f = input_gate[k, r, j], forget_gate[k, r, j]
                g, o = candidate[k, r, j], output_gate[k, r, j]
                tanh, now = squashed[k, r, j], dh[k, r, j] + error[k, r, j]
                cell = dc[k, r, j] + now * o * (one - tanh * tanh)
                found[k, r, j] = cell * g * i * (one - i)
                found[k, r, units + j] = cell * before[k, r, j] * f * (one - f)
                found[k, r, 2 * units + j] = cell * i * (one - g * g)
                found[k, r, 3 * units + j] = now * tanh * o * (one - o)
                dc[k, r, j] = cell * f


def word_gradient(error: Tensor, places: Tensor, there: Tensor | None) -> Rows:
    """The gradient of the table from that of the vectors [clients, n, width]."""
    return Rows(places, error if there is None else error * there.unsqueeze(2))


def _at(values: Tensor, rows: Tensor | None) -> Tensor:
    """The entries of the last axis whose rows are there."""
    return values if rows is None else values.gather(2, rows[:, None].expand(-1, values.shape[1], -1))


def _given(params: Params, name: str, inputs: Tensor, rows: Tensor | None) -> Tensor:
    """What the gates get from the layer below and their biases [clients, time x batch, gates]."""
    bias = (params[f"{name}.bias_ih"] + params[f"{name}.bias_hh"]).unsqueeze(1)
    weight = params[f"{name}.weight_ih"].transpose(1, 2)
    if rows is None:
        return torch.baddbmm(bias, inputs, weight)
    places = rows[:, None].expand(-1, inputs.shape[1], -1)
    return bias.expand(-1, inputs.shape[1], -1).scatter_add(2, places, torch.bmm(inputs, weight))
