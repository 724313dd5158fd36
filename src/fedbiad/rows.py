"""What "row j" is: which entries of which parameters one dropping label beta_j drops together.

A `Slice` is one index of one axis of one parameter, a `RowGroup` the slices that one label drops together, a
`Layout` all groups of a model. Everything else (masks, compact sub-models, bytes, row norms) follows from it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from torch import Tensor

from fedbiad import compiled
from fedbiad.arrays import FloatArray, IntArray, Params, Pattern, Shapes
from fedbiad.errors import LayoutError

ROW_KINDS = (
    "units", "weight-rows", "units-and-classes", "paper", "embedding-columns", "embedding-words", "gates-ih",
    "gates-hh", "lstm-units", "output-columns", "output-words",
)  # fmt: skip


def _known_rows(rows: str) -> str:
    """Every part of the name is a kind that some model has."""
    for part in rows.split("+"):
        if part not in ROW_KINDS:
            close = difflib.get_close_matches(part, ROW_KINDS, n=1, cutoff=0.4)
            context = {"kinds": ", ".join(ROW_KINDS), "meant": f" (did you mean {close[0]!r}?)" if close else ""}
            raise PydanticCustomError(
                "row_kind", "input should be one of {kinds}, or several joined by '+'{meant}", context
            )
    return rows


RowKind = Annotated[str, AfterValidator(_known_rows)]
"""What one label drops: `units` (row, bias, the next layer's column), `weight-rows` (one bare row each),
`units-and-classes` (as units, and the output layer's rows, one a class), or a model's own kinds, joined by "+"."""


@dataclass(frozen=True)
class Slice:
    """Row j of a group, seen in one parameter: an axis of length repeat x size x span, indexed by j in the middle.

    `repeat` = 4: the four gates of an LSTM unit. `span` = 49: the 7 x 7 columns that read one filter's map.
    `scaled`: takes the factor 1/(1-p) in local training, so that the next layer's input keeps its mean.
    """

    param: str
    axis: int
    repeat: int = 1
    span: int = 1
    scaled: bool = False


@dataclass(frozen=True)
class RowGroup:
    """`size` rows that are dropped by label: entry j of every slice together.

    `idle` slices are not dropped, but meet only zeros when row j is (the next layer's column of a dropped
    unit): the compact step need not compute them. `output`: the rows are the model's outputs (class rows).
    """

    name: str
    size: int
    slices: tuple[Slice, ...]
    idle: tuple[Slice, ...] = ()
    output: bool = False


AxisMasks = dict[str, list[tuple[int, Tensor]]]
"""For each parameter, the factors of its mask: (axis, [clients, length of the axis])."""


@dataclass(frozen=True)
class Layout:
    """All row groups of a model; `J = num_rows` labels in the order of the groups."""

    shapes: Shapes
    groups: tuple[RowGroup, ...]
    words: tuple[Slice, ...] = ()
    """Slices along a vocabulary, of which a client sends the words in its own data alone; empty: it sends them all."""
    ranges: dict[str, slice] = field(init=False)

    def __post_init__(self) -> None:
        problems = [p for group in self.groups for p in _group_problems(self.shapes, group)]
        axes = [(s.param, s.axis) for group in self.groups for s in (*group.slices, *group.idle)]
        problems += [f"axis {axis} of {param!r} belongs to two row groups" for param, axis in _repeated(axes)]
        problems += [f"two row groups are called {name!r}" for name in _repeated([g.name for g in self.groups])]
        problems += _word_problems(self.shapes, self.groups, self.words)
        if problems:
            raise LayoutError("the layout does not fit the model:" + "".join(f"\n  - {p}" for p in problems))
        ends = np.cumsum([g.size for g in self.groups]).tolist()
        ranges = {g.name: slice(end - g.size, end) for g, end in zip(self.groups, ends, strict=True)}
        object.__setattr__(self, "ranges", ranges)

    @cached_property
    def num_rows(self) -> int:
        """J, the number of dropping labels."""
        return sum(group.size for group in self.groups)

    @cached_property
    def num_words(self) -> int:
        """Words a client tells whether it has them; 0: none."""
        return self.shapes[self.words[0].param][self.words[0].axis] if self.words else 0

    @cached_property
    def sent(self) -> Layout:
        """The rows of a reply: these groups, and a row for every word as far as no group has it."""
        owned = {axis for group in self.groups for axis in _axes(group.slices)}
        free = tuple(part for part in self.words if (part.param, part.axis) not in owned)
        return Layout(self.shapes, (*self.groups, RowGroup("words", self.num_words, free))) if free else self

    @cached_property
    def word_groups(self) -> tuple[RowGroup, ...]:
        """The groups whose rows are words."""
        return tuple(group for group in self.groups if _axes(group.slices) & _axes(self.words))

    def sent_rows(self, pattern: Pattern, present: Pattern) -> Pattern:
        """The rows of `sent` that go out [..., rows]: those in `pattern`, of words only the ones the client has."""
        rows = np.concatenate([pattern, present], axis=-1) if self.sent is not self else pattern.copy()
        for group in self.word_groups:
            rows[..., self.ranges[group.name]] &= present
        return rows

    @cached_property
    def num_weights(self) -> int:
        """N, the number of weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def all_rows(self, clients: int) -> Pattern:
        """The pattern that holds every row."""
        return np.ones((clients, self.num_rows), dtype=np.bool_)

    def axis_masks(
        self, pattern: Pattern, scale: float | Tensor = 1.0, dtype: torch.dtype = torch.float32
    ) -> AxisMasks:
        """The factors of every parameter's mask; unmasked parameters are absent.

        `scale` multiplies the scaled slices: one factor, or one a client [clients].
        """
        by_client = torch.as_tensor(scale, dtype=dtype).reshape(-1, 1)
        masks: AxisMasks = {}
        for group in self.groups:
            held = torch.from_numpy(pattern[:, self.ranges[group.name]]).to(dtype)
            for part in group.slices:
                spread = held[:, None, :, None].expand(-1, part.repeat, -1, part.span)
                spread = spread.reshape(len(held), part.repeat * group.size * part.span)
                factor = spread * by_client if part.scaled else spread
                masks.setdefault(part.param, []).append((part.axis, factor))
        return masks

    def kept_indices(self, pattern: Pattern) -> dict[str, list[tuple[int, Tensor]]]:
        """For each parameter the entries a compact sub-model computes with: (axis, [clients, kept])."""
        indices: dict[str, list[tuple[int, Tensor]]] = {}
        for group in self.groups:
            rows = kept_rows(pattern[:, self.ranges[group.name]], group.name)
            for part in (*group.slices, *group.idle):
                index = _spread_index(rows, group.size, part)
                indices.setdefault(part.param, []).append((part.axis, torch.from_numpy(index)))
        return indices

    def gather(self, u: Params, indices: dict[str, list[tuple[int, Tensor]]]) -> Params:
        """The kept entries of every parameter [clients, ...] as smaller tensors: the compact sub-model."""
        compact = dict(u)
        for param, axes in indices.items():
            for axis, index in axes:
                compact[param] = _take(compact[param], axis, index)
        return compact

    def scatter(self, u: Params, compact: Params, indices: dict[str, list[tuple[int, Tensor]]]) -> None:
        """Write a compact sub-model back into the full parameters, in place; the inverse of `gather`."""
        for param, full in u.items():
            if compact[param] is not full:
                _put(full, compact[param], indices.get(param, []))

    def kept_entries(self, pattern: Pattern) -> npt.NDArray[np.bool_]:
        """Which weights one client's pattern [rows] keeps, in full coordinates [N]."""
        masks = self.axis_masks(pattern[None], dtype=torch.bool)
        parts = []
        for name, shape in self.shapes.items():
            held = torch.ones((1, *shape), dtype=torch.bool)
            for axis, mask in masks.get(name, []):
                held &= on_axis(mask, axis, len(shape) + 1)
            parts.append(held.flatten())
        return torch.cat(parts).numpy()

    def row_norms(self, u: Params) -> FloatArray:
        """Squared norm of every row over all its slices [clients, rows]."""
        clients = len(next(iter(u.values())))
        norms = torch.zeros((clients, self.num_rows), dtype=torch.float64)
        for group in self.groups:
            for part in group.slices:
                rows_first = u[part.param].detach().square().movedim(part.axis + 1, 1)
                squares = rows_first.reshape(*rows_first.shape[:2], -1).sum(2, dtype=torch.float64)
                per_row = squares.view(clients, part.repeat, group.size, part.span).sum((1, 3))
                norms[:, self.ranges[group.name]] += per_row
        return norms.numpy()

    def kept_weights(self, pattern: Pattern) -> IntArray:
        """How many weights each client uploads [clients]: S for the rows held, and all that no label drops."""
        if pattern.all():
            return np.full(len(pattern), self.num_weights)
        kept = [lengths.prod(1) for lengths in self._kept_lengths(pattern).values()]
        counts: IntArray = np.sum(kept, axis=0, dtype=np.int64)
        return counts

    def kept_shapes(self, pattern: Pattern) -> Shapes:
        """The shape of what one client's pattern [rows] keeps of every parameter."""
        return {name: tuple(lengths[0].tolist()) for name, lengths in self._kept_lengths(pattern[None]).items()}

    def _kept_lengths(self, pattern: Pattern) -> dict[str, IntArray]:
        """How long every axis of every parameter remains [clients, axes]."""
        lengths = {
            name: np.tile(np.array(shape, dtype=np.int64), (len(pattern), 1)) for name, shape in self.shapes.items()
        }
        for group in self.groups:
            held = pattern[:, self.ranges[group.name]].sum(1)
            for part in group.slices:
                lengths[part.param][:, part.axis] = held * part.repeat * part.span
        return lengths


def kept_rows(pattern: Pattern, group: str) -> IntArray:
    """Indices of the held rows [clients, kept]; every client of the block must hold equally many."""
    counts = pattern.sum(1)
    if (counts != counts[0]).any():
        raise LayoutError(
            f"clients of one block hold different numbers of rows of {group!r} ({counts.min()} to {counts.max()}): "
            "a compact step needs equal counts; use scope = 'group', form = 'masked' or block = 1"
        )
    return np.nonzero(pattern)[1].reshape(len(pattern), int(counts[0]))


def on_axis(mask: Tensor, axis: int, dims: int) -> Tensor:
    """A factor [clients, length] shaped to broadcast along `axis` of a tensor with `dims` axes, clients first."""
    shape = [len(mask)] + [1] * (dims - 1)
    shape[axis + 1] = mask.shape[1]
    return mask.view(shape)


def _spread_index(rows: IntArray, size: int, part: Slice) -> IntArray:
    """Positions of rows j along an axis of repeat x size x span entries."""
    repeats = np.arange(part.repeat)[None, :, None, None] * (size * part.span)
    inside = np.arange(part.span)[None, None, None, :]
    spread: IntArray = (repeats + rows[:, None, :, None] * part.span + inside).reshape(len(rows), -1)
    return spread


def _take(full: Tensor, axis: int, index: Tensor) -> Tensor:
    """Entries `index` [clients, kept] along `axis` (not counting the client axis)."""
    if _by_columns(full, axis):
        columns = full.new_empty(*full.shape[:2], index.shape[1])
        for own, chosen, taken in zip(full.numpy(), index.numpy(), columns.numpy(), strict=True):
            compiled.take_columns(own, chosen, taken)
        return columns
    moved = full.movedim(axis + 1, 1)
    clients, length = moved.shape[:2]
    flat = moved.reshape(clients * length, *moved.shape[2:])
    offsets = torch.arange(clients)[:, None] * length
    taken = flat.index_select(0, (index + offsets).reshape(-1))
    return taken.view(clients, index.shape[1], *moved.shape[2:]).movedim(1, axis + 1).contiguous()


def _put(full: Tensor, values: Tensor, axes: Sequence[tuple[int, Tensor]]) -> None:
    """Inverse of taking along each of `axes` in turn, in place."""
    if not axes:
        full.copy_(values)
        return
    (axis, index), rest = axes[0], axes[1:]
    if rest:
        inner = _take(full, axis, index)
        _put(inner, values, rest)
        values = inner
    if _by_columns(full, axis):
        for own, chosen, taken in zip(full.numpy(), index.numpy(), values.contiguous().numpy(), strict=True):
            compiled.put_columns(taken, chosen, own)
        return
    clients = torch.arange(len(full))[:, None]
    full.movedim(axis + 1, 1)[clients, index] = values.movedim(axis + 1, 1)


def _by_columns(full: Tensor, axis: int) -> bool:
    """Whether entries are columns of matrices: sooner picked one by one than as rows of transposed ones."""
    return full.dim() == 3 and axis == 1 and full.is_contiguous() and full.is_floating_point()


def _group_problems(shapes: Shapes, group: RowGroup) -> list[str]:
    problems = [] if group.size >= 1 else [f"row group {group.name!r} has no rows"]
    for part in (*group.slices, *group.idle):
        where = f"row group {group.name!r}: "
        if part.param not in shapes:
            problems.append(where + f"the model has no parameter {part.param!r} (it has {', '.join(shapes)})")
        elif not 0 <= part.axis < len(shapes[part.param]):
            problems.append(where + f"{part.param!r} has no axis {part.axis}, its shape is {shapes[part.param]}")
        elif shapes[part.param][part.axis] != part.repeat * group.size * part.span:
            wanted = f"repeat {part.repeat} x size {group.size} x span {part.span}"
            problems.append(
                where + f"axis {part.axis} of {part.param!r} has {shapes[part.param][part.axis]} entries, not {wanted}"
            )
    return problems


def _word_problems(shapes: Shapes, groups: tuple[RowGroup, ...], words: tuple[Slice, ...]) -> list[str]:
    """Words are one index of all their slices; a group whose rows are words has no other slices."""
    if not words:
        return []
    sizes = [shapes[part.param][part.axis] for part in words if part.axis < len(shapes.get(part.param, ()))]
    problems = _group_problems(shapes, RowGroup("words", min(sizes, default=0), words))
    mixed = [g for g in groups if _axes(g.slices) & _axes(words) and not _axes(g.slices) <= _axes(words)]
    mixed += [g for g in groups if _axes(g.slices) & _axes(words) and g.size != min(sizes, default=0)]
    return problems + [f"the rows of group {group.name!r} are not words alone" for group in mixed]


def _axes(slices: tuple[Slice, ...]) -> set[tuple[str, int]]:
    return {(part.param, part.axis) for part in slices}


def _repeated(names: list[Any]) -> list[Any]:
    return [name for i, name in enumerate(names) if name in names[:i]]
