"""Fully connected networks of any depth: x_l = relu(W_l x_{l-1} + b_l), the last layer linear."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbiad.arrays import Params, Shapes
from fedbiad.models.base import Model, class_rows, linear, masked_units, unit_group
from fedbiad.rows import Layout, RowKind


@dataclass(frozen=True)
class MLP(Model):
    """`inputs` -> `hidden` ... -> `outputs`."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int

    @property
    def shapes(self) -> Shapes:
        widths = (self.inputs, *self.hidden, self.outputs)
        shapes: Shapes = {}
        for i in range(1, len(widths)):
            shapes[f"layer{i}.weight"] = (widths[i], widths[i - 1])
            shapes[f"layer{i}.bias"] = (widths[i],)
        return shapes

    def forward(self, params: Params, inputs: Tensor, unit_masks: dict[str, Tensor]) -> Tensor:
        x = inputs.flatten(2)
        for i in range(1, len(self.hidden) + 1):
            x = masked_units(linear(params, f"layer{i}", x).relu(), f"layer{i}", unit_masks)
        return linear(params, f"layer{len(self.hidden) + 1}", x)

    def layout(self, rows: RowKind) -> Layout:
        groups = [unit_group(f"layer{i}", f"layer{i + 1}", size, rows) for i, size in enumerate(self.hidden, start=1)]
        if rows == "weight-rows":
            groups.append(class_rows(f"layer{len(self.hidden) + 1}", self.outputs))
        return Layout(self.shapes, tuple(groups))

    @property
    def dropout_sites(self) -> dict[str, int]:
        return {f"layer{i}": size for i, size in enumerate(self.hidden, start=1)}
