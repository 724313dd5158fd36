"""The parts of a recurrent model with their gradients, for whole layers and for compact ones that lack some rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import FloatArray, IntArray, Params
from fedbiad.models import states
from fedbiad.models.absent import AbsentWords
from fedbiad.models.base import Gradients, Kept, Outer, Rows, linear, times
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
    """What a layer's gradient needs of its forward pass, [clients, time, batch, ...]."""

    inputs: Tensor  # [clients, time x batch, width]
    gates: Tensor  # i, f, g, o after their non-linearities, side by side; the way back makes their gradient of them
    h: Tensor  # the state a step begins with, and after the last
    c: Tensor
    squashed: Tensor  # tanh(c) after the step


def lstm_layer(params: Params, name: str, inputs: Tensor, state: Pair, kept: Kept) -> tuple[Tensor, Pair, Trace]:
    """One layer over all time steps: its outputs [clients, time, batch, units], its last state, and the trace.

    A gate's row of W_ih or W_hh that is not there adds nothing to the gate's pre-activation.
    """
    clients, time, batch = inputs.shape[:3]
    units = state[0].shape[2]
    flat = inputs.flatten(1, 2)
    gates = _given(params, name, flat, kept.get(f"{name}.weight_ih")).view(clients, time, batch, -1)
    h, c = (gates.new_empty(clients, time + 1, batch, units) for _ in range(2))
    h[:, 0], c[:, 0] = state
    trace = Trace(flat, gates, h, c, gates.new_empty(clients, time, batch, units))
    recurrent, rows = _recurrent(params, name, kept)
    states.run(gates.numpy(), recurrent, rows, h.numpy(), c.numpy(), trace.squashed.numpy())
    return h[:, 1:], (h[:, time], c[:, time]), trace


def lstm_layer_gradients(
    params: Params, name: str, error: Tensor, trace: Trace, kept: Kept
) -> tuple[Tensor, Gradients]:
    """The gradient of a layer's inputs [clients, time, batch, width] and of its parameters.

    From that of its outputs [clients, time, batch, units], through time; nothing flows into the state it began with.
    """
    gates, c, squashed, above = (part.numpy() for part in (trace.gates, trace.c, trace.squashed, error.contiguous()))
    states.run_back(gates, *_recurrent(params, name, kept), c, squashed, above)
    of_gates = trace.gates.flatten(1, 2)
    past = trace.h[:, :-1].flatten(1, 2)
    from_below, from_past = (_at(of_gates, kept.get(f"{name}.weight_{side}")) for side in ("ih", "hh"))
    bias = of_gates.sum(1)
    found: Gradients = {
        f"{name}.weight_ih": Outer(from_below, trace.inputs), f"{name}.weight_hh": Outer(from_past, past),
        f"{name}.bias_ih": bias, f"{name}.bias_hh": bias,
    }  # fmt: skip
    below = torch.bmm(from_below, params[f"{name}.weight_ih"])
    return below.view(*error.shape[:3], -1), found


def word_logits(params: Params, read: Tensor) -> Tensor:
    """The output layer [clients, samples, words]; absent words, if they are one term, are the last class."""
    absent, logits = AbsentWords.of(params), linear(params, "output", read)
    return logits if absent is None else torch.cat([logits, absent.logits(read)[0].unsqueeze(2)], 2)


def output_gradients(params: Params, read: Tensor, head: Head) -> tuple[Tensor, Tensor, Gradients]:
    """The output layer: each client's loss, the gradient of what it reads [clients, samples, width], its own gradients.

    Absent words that are one term are frozen: they have no gradient of their own. With more samples than units the
    layer's gradient is smaller than the logits: it is then formed, from a few samples at a time, and no more logits are
    ever there.
    """
    weight, own_bias, absent = params["output.weight"], params["output.bias"], AbsentWords.of(params)
    rest, slope = (None, None) if absent is None else absent.logits(read)
    if not isinstance(head, Likelihood):
        losses, errors = losses_and_errors(head, word_logits(params, read))
        error, rest = errors[:, :, : weight.shape[1]], None if slope is None else errors[:, :, -1]
        found: Gradients = {"output.weight": Outer(error, read), "output.bias": error.sum(1)}
        return losses, _through(error, params, rest, slope), found
    clients, samples, width = read.shape
    losses, bias = read.new_zeros(clients), torch.zeros_like(own_bias)
    given = times(read, params, "output.weight")
    if samples <= width:
        error = torch.bmm(given, weight.transpose(1, 2))
        losses = head.part(error, 0, (own_bias, bias), rest)
        found = {"output.weight": Outer(error, read), "output.bias": bias}
        return losses, _through(error, params, rest, slope), found
    formed, back = torch.empty_like(weight), torch.empty_like(read)
    at_a_time = max(LOGITS // (clients * weight.shape[1]), 64)
    for first in range(0, samples, at_a_time):
        span = slice(first, first + at_a_time)
        own_rest = None if rest is None else rest[:, span]
        error = torch.bmm(given[:, span], weight.transpose(1, 2))
        losses += head.part(error, first, (own_bias, bias), own_rest)
        torch.baddbmm(formed, error.transpose(1, 2), read[:, span], beta=1 if first else 0, out=formed)
        back[:, span] = _through(error, params, own_rest, None if slope is None else slope[:, span])
    return losses, back, {"output.weight": formed, "output.bias": bias}


def _through(error: Tensor, params: Params, rest: Tensor | None, slope: Tensor | None) -> Tensor:
    """The gradient of what the output layer reads from that of its logits and of the absent words' term."""
    back = times(torch.bmm(error, params["output.weight"]), params, "output.weight")
    return back if rest is None or slope is None else back.addcmul_(rest.unsqueeze(2), slope)


def word_gradient(error: Tensor, places: Tensor, there: Tensor | None) -> Rows:
    """The gradient of the table from that of the vectors [clients, n, width]."""
    return Rows(places, error if there is None else error * there.unsqueeze(2))


def _recurrent(params: Params, name: str, kept: Kept) -> tuple[FloatArray, IntArray]:
    """W_hh [clients, rows, units] and which gates its rows are; none are named if all are there."""
    weight, rows = params[f"{name}.weight_hh"].contiguous().numpy(), kept.get(f"{name}.weight_hh")
    return weight, np.empty((len(weight), 0), np.int64) if rows is None else rows.contiguous().numpy()


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
