"""A word-level LSTM language model: embedding, LSTM layers, output; its rows are chosen group by group, by name.

Tokens [clients, batch, time] give logits [clients, batch x time, words], time running fastest; targets come in the
same order [clients, batch x time].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import Params, Shapes
from fedbiad.errors import LayoutError
from fedbiad.models.base import (
    WHOLE,
    Gradients,
    Kept,
    Memory,
    Model,
    class_rows,
    masked_units,
    require_kind,
    times,
)
from fedbiad.models.heads import Head
from fedbiad.models.recurrent import (
    Trace,
    lstm_layer,
    lstm_layer_gradients,
    output_gradients,
    present_words,
    word_gradient,
    word_logits,
    word_vectors,
)
from fedbiad.rows import Layout, RowGroup, RowKind, Slice
from fedbiad.theory import Structure

ALIASES = {
    "units": ("lstm-units",),
    "weight-rows": ("embedding-words", "gates-ih", "gates-hh", "output-words"),
    "units-and-classes": ("lstm-units", "output-words"),
    "paper": ("embedding-columns", "gates-hh", "output-columns"),
}
"""Short names. `paper`: what the sizes in the paper's tables imply; `weight-rows`: the rows of every matrix."""

State = list[tuple[Tensor, Tensor]]
"""(h, c) of every layer, each [clients, batch, units]."""


@dataclass(frozen=True)
class _Passed:
    """A forward pass up to what the output layer reads, and what its gradient needs."""

    read: Tensor  # [clients, batch x time, units]
    after: State
    traces: list[Trace]
    places: Tensor  # of the words in the table [clients, time x batch]
    there: Tensor | None
    widths: list[int]


@dataclass(frozen=True)
class LSTM(Model):
    """`vocabulary` words -> `embedding` -> `layers` of `hidden` units -> logits; gates in torch's order i, f, g, o."""

    vocabulary: int
    embedding: int = 300
    hidden: int = 300
    layers: int = 2

    @property
    def shapes(self) -> Shapes:
        shapes: Shapes = {"embedding.weight": (self.vocabulary, self.embedding)}
        for i, width in enumerate((self.embedding, *[self.hidden] * (self.layers - 1)), start=1):
            shapes[f"lstm{i}.weight_ih"] = (4 * self.hidden, width)
            shapes[f"lstm{i}.weight_hh"] = (4 * self.hidden, self.hidden)
            shapes[f"lstm{i}.bias_ih"] = (4 * self.hidden,)
            shapes[f"lstm{i}.bias_hh"] = (4 * self.hidden,)
        shapes["output.weight"] = (self.vocabulary, self.hidden)
        shapes["output.bias"] = (self.vocabulary,)
        return shapes

    def init(self, stream: np.random.Generator) -> Params:
        """U_0: embedding and output uniform within 0.1, the output's bias 0, the LSTM within 1/sqrt(hidden)."""
        bounds = {"embedding.weight": 0.1, "output.weight": 0.1, "output.bias": 0.0}
        params: Params = {}
        for name, shape in self.shapes.items():
            bound = bounds.get(name, self.hidden**-0.5)
            params[name] = torch.from_numpy(stream.uniform(-bound, bound, shape).astype(np.float32))
        return params

    def forward(
        self,
        params: Params,
        inputs: Tensor,
        unit_masks: dict[str, Tensor],
        kept: Kept = WHOLE,
        memory: Memory | None = None,
    ) -> Tensor:
        """Logits [clients, batch x time, words] of sequences that begin with the state 0 or follow on `memory`.

        A unit's mask holds for all time steps of its sequence: `unit_masks` are [clients, batch, units].
        """
        logits, after = self.run(params, inputs, unit_masks, self._begin(params, inputs, kept, memory), kept)
        self._remember(after, kept, memory)
        return logits

    def initial_state(self, params: Params, batch: int) -> State:
        """The state 0."""
        widths = [params[f"lstm{i}.weight_hh"] for i in self._layers]
        return [(w.new_zeros(len(w), batch, w.shape[2]), w.new_zeros(len(w), batch, w.shape[2])) for w in widths]

    def run(
        self, params: Params, tokens: Tensor, unit_masks: dict[str, Tensor], state: State, kept: Kept = WHOLE
    ) -> tuple[Tensor, State]:
        """Logits for tokens [clients, batch, time] that follow on `state`, and the state after them."""
        passed = self._pass(params, tokens, unit_masks, state, kept)
        return word_logits(params, passed.read), passed.after

    @torch.no_grad()
    def loss_and_gradients(
        self,
        params: Params,
        inputs: Tensor,
        unit_masks: dict[str, Tensor],
        head: Head,
        kept: Kept = WHOLE,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Gradients]:
        """Backpropagation through time, stated: weight gradients stay products, the table's only has words seen."""
        passed = self._pass(params, inputs, unit_masks, self._begin(params, inputs, kept, memory), kept)
        self._remember(passed.after, kept, memory)
        losses, back, gradients = output_gradients(params, passed.read, head)
        columns = kept.get("output-columns")
        if columns is not None:
            everywhere = back.new_zeros(*back.shape[:2], passed.widths[-1])
            back = everywhere.scatter(2, columns[:, None].expand(back.shape), back)
        batch, time = inputs.shape[1:]
        back = back.view(len(inputs), batch, time, -1).transpose(1, 2)
        masks = {site: mask.unsqueeze(1) for site, mask in unit_masks.items()}
        for i, trace in zip(reversed(self._layers), reversed(passed.traces), strict=True):
            back = masked_units(back, f"lstm{i}", masks)
            back, found = lstm_layer_gradients(params, f"lstm{i}", back, trace, kept)
            gradients |= found
        back = masked_units(back, "embedding", masks).flatten(1, 2)
        gradients["embedding.weight"] = word_gradient(back, passed.places, passed.there)
        return losses, gradients

    def _pass(self, params: Params, tokens: Tensor, unit_masks: dict[str, Tensor], state: State, kept: Kept) -> _Passed:
        masks = {site: mask.unsqueeze(1) for site, mask in unit_masks.items()}  # the same at every time step
        by_time = tokens.transpose(1, 2)
        places, there = present_words(by_time.flatten(1), kept.get("embedding-words"), self.vocabulary)
        x = times(word_vectors(params["embedding.weight"], places, there), params, "embedding.weight")
        x = masked_units(x.view(*by_time.shape, -1), "embedding", masks)  # [clients, time, batch, units] from here on
        after: State = []
        traces = []
        for i, before in zip(self._layers, state, strict=True):
            x, last, trace = lstm_layer(params, f"lstm{i}", x, before, kept)
            x = masked_units(x, f"lstm{i}", masks)
            after.append(last)
            traces.append(trace)
        read = x.transpose(1, 2).flatten(1, 2)
        if "output-columns" in kept:  # the units the output layer still reads
            read = read.gather(2, kept["output-columns"][:, None].expand(-1, read.shape[1], -1))
        return _Passed(read, after, traces, places, there, [h.shape[2] for h, _ in after])

    def layout(self, rows: RowKind) -> Layout:
        """Row groups by name, several joined by "+" in any order; see `row_groups` and `ALIASES`."""
        groups = self.row_groups()
        chosen: list[str] = []
        for name in rows.split("+"):
            require_kind(self, name, (*ALIASES, *groups))
            chosen += ALIASES.get(name, (name,))
        problems = [f"{name} is named twice" for name in groups if chosen.count(name) > 1]
        for first, second in combinations([name for name in groups if name in chosen], 2):
            shared = sorted(_axes(groups[first]) & _axes(groups[second]))
            if shared:
                param, axis = shared[0]
                problems.append(f"{first} and {second} both have axis {axis} of {param!r}: choose one of them")
        if problems:
            raise LayoutError(f"rows = {rows!r}: {'; '.join(problems)}")
        return Layout(self.shapes, tuple(g for name, own in groups.items() if name in chosen for g in own))

    def row_groups(self) -> dict[str, tuple[RowGroup, ...]]:
        """Every kind of row, by name.

        embedding-columns: a column of the embedding; what the first layer reads of it is idle meanwhile.
        embedding-words: a word's vector.
        gates-ih, gates-hh: one row of W_ih or W_hh, so that one gate of one unit is blind to the layer below or to the
          past. Its biases, which are no connections, stay: the gate then follows from the rest of its pre-activation.
        lstm-units: a unit with its four gates, their biases, and all columns that read it (dropped, it outputs 0).
        output-columns: the output layer does not read a unit; the LSTM goes on using it.
        output-words: a word's row and bias in the output layer (dropped, its logit is 0).

        Factor 1/(1-p): on what the next layer reads (columns; words' vectors), and on gate rows, whose contribution to
        a pre-activation then keeps its mean (no more: a sigmoid is not homogeneous). Logits take none.
        """
        reads = Slice("lstm1.weight_ih", 1)
        columns = Slice("embedding.weight", 1, scaled=True)
        words = Slice("embedding.weight", 0, scaled=True)
        output = Slice("output.weight", 1, scaled=True)
        return {
            "embedding-columns": (RowGroup("embedding", self.embedding, (columns,), idle=(reads,)),),
            "embedding-words": (RowGroup("embedding-words", self.vocabulary, (words,)),),
            "gates-ih": tuple(self._gate_rows(f"lstm{i}.weight_ih") for i in self._layers),
            "gates-hh": tuple(self._gate_rows(f"lstm{i}.weight_hh") for i in self._layers),
            "lstm-units": tuple(self._units(i) for i in self._layers),
            "output-columns": (RowGroup("output-columns", self.hidden, (output,)),),
            "output-words": (class_rows("output", self.vocabulary),),
        }

    @property
    def large(self) -> tuple[str, ...]:
        return "embedding.weight", "output.weight"

    @property
    def words(self) -> tuple[Slice, ...]:
        """A word's vector, and its row and bias in the output layer."""
        return tuple(Slice(param, 0) for param in ("embedding.weight", "output.weight", "output.bias"))

    @property
    def recurrent_groups(self) -> tuple[str, ...]:
        return tuple(f"lstm{i}" for i in self._layers)

    @property
    def dropout_sites(self) -> dict[str, int]:
        """The inputs of every LSTM layer and of the output layer, named after what they are read from."""
        return {"embedding": self.embedding} | {f"lstm{i}": self.hidden for i in self._layers}

    @cached_property
    def structure(self) -> Structure:
        """d and D are the widths a word's vector and a layer have; J counts the rows of all matrices."""
        rows = 2 * self.vocabulary + self.layers * 8 * self.hidden
        return Structure(inputs=self.embedding, width=self.hidden, layers=self.layers + 2, rows=rows)

    def _begin(self, params: Params, inputs: Tensor, kept: Kept, memory: Memory | None) -> State:
        if memory is None or memory.state is None:
            return self.initial_state(params, inputs.shape[1])
        return [self._there(i, pair, kept) for i, pair in zip(self._layers, memory.state, strict=True)]

    def _remember(self, after: State, kept: Kept, memory: Memory | None) -> None:
        if memory is not None:
            memory.state = [self._whole(i, pair, kept) for i, pair in zip(self._layers, after, strict=True)]

    def _there(self, i: int, pair: tuple[Tensor, Tensor], kept: Kept) -> tuple[Tensor, Tensor]:
        """Of a layer's state, the units that are there."""
        units = kept.get(f"lstm{i}")
        if units is None:
            return pair
        places = units[:, None].expand(-1, pair[0].shape[1], -1)
        return pair[0].gather(2, places), pair[1].gather(2, places)

    def _whole(self, i: int, pair: tuple[Tensor, Tensor], kept: Kept) -> tuple[Tensor, Tensor]:
        """A layer's state with every unit in its place, apart from the graph; those that are not there hold 0."""
        h, c = (part.detach() for part in pair)
        units = kept.get(f"lstm{i}")
        if units is None:
            return h, c
        places = units[:, None].expand(h.shape)
        zeros = h.new_zeros(*h.shape[:2], self.hidden)
        return zeros.scatter(2, places, h), zeros.scatter(2, places, c)

    @property
    def _layers(self) -> range:
        return range(1, self.layers + 1)

    def _gate_rows(self, param: str) -> RowGroup:
        return RowGroup(param, 4 * self.hidden, (Slice(param, 0, scaled=True),))

    def _units(self, i: int) -> RowGroup:
        own = tuple(Slice(f"lstm{i}.{part}", 0, repeat=4) for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        following = f"lstm{i + 1}.weight_ih" if i < self.layers else "output.weight"
        read = (Slice(f"lstm{i}.weight_hh", 1, scaled=True), Slice(following, 1, scaled=True))
        return RowGroup(f"lstm{i}", self.hidden, (*own, *read))


def _axes(groups: tuple[RowGroup, ...]) -> set[tuple[str, int]]:
    return {(part.param, part.axis) for group in groups for part in (*group.slices, *group.idle)}
