"""What a model states: its parameters, a forward pass with a leading client axis, and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import Params, Shapes
from fedbiad.errors import LayoutError
from fedbiad.models.heads import Head, losses_and_errors
from fedbiad.rows import Layout, RowGroup, RowKind, Slice
from fedbiad.theory import Structure
from fedbiad.training.batches import Batch

PLAIN_KINDS = ("units", "weight-rows", "units-and-classes")
"""The kinds of rows of a feed-forward network."""

Kept = Mapping[str, Tensor]
"""Of a compact sub-model, the rows of each group that are there [clients, kept]; empty: the model is whole."""

WHOLE: Kept = MappingProxyType({})


@dataclass
class Memory:
    """What a recurrent model carries from one batch of a client to the next, whole whatever rows are there.

    A model without recurrence leaves it empty.
    """

    state: list[tuple[Tensor, Tensor]] | None = None

    def only_where(self, continues: Tensor) -> None:
        """Forget the clients [clients] whose next batch does not follow on the last."""
        if self.state is not None:
            keep = continues.view(-1, 1, 1).to(self.state[0][0].dtype)
            self.state = [(h * keep, c * keep) for h, c in self.state]

    def only_units(self, held: Sequence[Tensor | None]) -> None:
        """Forget the units of each layer that are not held [clients, units]; None: all are."""
        if self.state is not None:
            kept = [1.0 if own is None else own.unsqueeze(1) for own in held]
            self.state = [(h * own, c * own) for own, (h, c) in zip(kept, self.state, strict=True)]


@dataclass(frozen=True)
class Outer:
    """A weight matrix's gradient, left unformed: the sum over the batch of left (x) right."""

    left: Tensor  # [clients, batch, rows]
    right: Tensor  # [clients, batch, columns]

    def dense(self) -> Tensor:
        """The gradient itself [clients, rows, columns]."""
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def times(self, factor: Tensor) -> Outer:
        """The gradient of each client times its factor [clients, 1, 1], taken on by the smaller side."""
        if self.left.shape[2] < self.right.shape[2]:
            return Outer(self.left * factor, self.right)
        return Outer(self.left, self.right * factor)

    @property
    def larger(self) -> bool:
        """Whether forming it takes fewer products than its norm from Gram matrices: n r c against n^2 (r + c)."""
        (_, samples, rows), columns = self.left.shape, self.right.shape[2]
        return samples * (rows + columns) > rows * columns


@dataclass(frozen=True)
class Rows:
    """A table's gradient at the rows that were read, left where they are: a row read twice is there twice."""

    places: Tensor  # [clients, n]
    values: Tensor  # [clients, n, width]

    def dense(self, shape: torch.Size) -> Tensor:
        """The gradient itself, of a table of this shape [clients, rows, width]."""
        full = self.values.new_zeros(shape)
        self.add_to(full, 1.0)
        return full

    def add_to(self, table: Tensor, alpha: float) -> None:
        """Add alpha times the gradient to a table [clients, rows, width], in place."""
        starts = torch.arange(len(table))[:, None] * table.shape[1]
        table.view(-1, table.shape[2]).index_add_(
            0, (self.places + starts).flatten(), self.values.flatten(0, 1), alpha=alpha
        )


Gradient = Tensor | Outer | Rows
Gradients = dict[str, Gradient]


@dataclass(frozen=True)
class Model:
    """A functional model: no weights inside, shapes follow from the parameters it is given."""

    @property
    def shapes(self) -> Shapes:
        """Shape of every parameter."""
        raise NotImplementedError

    def init(self, stream: np.random.Generator) -> Params:
        """Initial parameters U_0, as torch's own layers draw them: uniform within 1/sqrt(inputs)."""
        params: Params = {}
        bound = 1.0
        for name, shape in self.shapes.items():
            if len(shape) > 1:
                bound = float(np.prod(shape[1:])) ** -0.5
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
        """Outputs [clients, batch, classes] for parameters [clients, ...] and inputs [clients, batch, ...].

        The sizes of hidden layers are read off the parameters, so a compact sub-model runs through the same code.
        Where sizes do not say what is read (rows of one matrix among several that make a layer), `kept` does.
        A recurrent model begins with what is in `memory` and leaves there what comes after; None: it begins with 0.
        `unit_masks` multiply the activations of the dropout sites they name (ordinary dropout; {} for none).
        """
        raise NotImplementedError

    def answers(self, params: Params, batch: Batch, memory: Memory | None = None) -> Tensor:
        """The same of a batch, to be judged."""
        return self.forward(params, batch.inputs, {}, WHOLE, memory)

    def loss_and_gradients(
        self,
        params: Params,
        inputs: Tensor,
        unit_masks: dict[str, Tensor],
        head: Head,
        kept: Kept = WHOLE,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Gradients]:
        """Each client's loss [clients] and its gradient, by autograd; a model may state it instead."""
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        outputs = self.forward(leaves, inputs, unit_masks, kept, memory)
        losses, errors = losses_and_errors(head, outputs.detach().clone())
        # clients are independent, so the gradient of the sum holds each client's own gradient
        found = torch.autograd.grad(outputs, list(leaves.values()), errors, materialize_grads=True)
        return losses, dict(zip(leaves, found, strict=True))

    def layout(self, rows: RowKind) -> Layout:
        """Row groups: hidden units (row, bias, the next layer's column) or every single weight row."""
        raise NotImplementedError

    @property
    def compacts(self) -> bool:
        """Whether `forward` also runs on compact sub-models, whatever the layout."""
        return True

    @property
    def large(self) -> tuple[str, ...]:
        """Parameters that are not multiplied by their factor 1/(1-p) as a whole: the model looks for it (`factor`)."""
        return ()

    @property
    def words(self) -> tuple[Slice, ...]:
        """Slices with an entry for every word of a vocabulary; (): the model has no words."""
        return ()

    @property
    def recurrent_groups(self) -> tuple[str, ...]:
        """For each layer that remembers, the name its units have as a row group."""
        return ()

    @property
    def dropout_sites(self) -> dict[str, int]:
        """Where ordinary dropout can act: name of the row group -> number of units."""
        return {}

    @cached_property
    def structure(self) -> Structure:
        """(d, D, L, J) for the theory."""
        return Structure.from_shapes(self.shapes)


def linear(params: Params, name: str, inputs: Tensor) -> Tensor:
    """x W^T + b for every client."""
    bias = params[f"{name}.bias"].unsqueeze(1)
    return torch.baddbmm(bias, times(inputs, params, f"{name}.weight"), params[f"{name}.weight"].transpose(1, 2))


def factor(name: str) -> str:
    """The name by which the factor of a large parameter comes with it, shaped to multiply [clients, n, width]."""
    return f"{name}/factor"


def times(values: Tensor, params: Params, name: str) -> Tensor:
    """Values that a large parameter is read with, or that are read from it, times its factor, if it has one."""
    own = params.get(factor(name))
    return values if own is None else values * own


def masked_units(activations: Tensor, site: str, unit_masks: dict[str, Tensor]) -> Tensor:
    """Ordinary dropout at a site, if it is on."""
    mask = unit_masks.get(site)
    return activations if mask is None else activations * mask


def require_kind(model: Model, rows: RowKind, kinds: tuple[str, ...] = PLAIN_KINDS) -> None:
    """Refuse a kind of rows that the model does not have."""
    if rows not in kinds:
        raise LayoutError(f"rows = {rows!r} is not known to {type(model).__name__}; it has {', '.join(kinds)}")


def unit_group(layer: str, following: str, size: int, rows: RowKind, span: int = 1) -> RowGroup:
    """The units (or filters) of a layer; each is read by `span` columns of the following layer.

    As units they own those columns; as bare weight rows they leave them in place, idle while the row is dropped.
    """
    if rows != "weight-rows":
        own = (Slice(f"{layer}.weight", 0), Slice(f"{layer}.bias", 0))
        return RowGroup(layer, size, (*own, Slice(f"{following}.weight", 1, span=span, scaled=True)))
    # relu and pooling are positively homogeneous: scaling a unit's own row is scaling its output
    own = (Slice(f"{layer}.weight", 0, scaled=True), Slice(f"{layer}.bias", 0, scaled=True))
    return RowGroup(layer, size, own, idle=(Slice(f"{following}.weight", 1, span=span),))


def class_rows(layer: str, size: int) -> RowGroup:
    """The rows of the output layer; a dropped class has logit 0."""
    return RowGroup(layer, size, (Slice(f"{layer}.weight", 0), Slice(f"{layer}.bias", 0)), output=True)
