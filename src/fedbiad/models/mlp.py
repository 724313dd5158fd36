"""Fully connected networks of any depth: x_l = relu(W_l x_{l-1} + b_l), the last layer linear."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbiad.arrays import Params, Shapes
from fedbiad.models.base import (
    WHOLE,
    Gradients,
    Kept,
    Memory,
    Model,
    Outer,
    class_rows,
    linear,
    masked_units,
    require_kind,
    unit_group,
)
from fedbiad.models.heads import Head, losses_and_errors
from fedbiad.rows import Layout, RowKind
from fedbiad.training.batches import Batch


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

    def forward(
        self,
        params: Params,
        inputs: Tensor,
        unit_masks: dict[str, Tensor],
        kept: Kept = WHOLE,
        memory: Memory | None = None,
    ) -> Tensor:
        return self._after(linear(params, "layer1", inputs.flatten(2)), params, unit_masks)

    def answers(self, params: Params, batch: Batch, memory: Memory | None = None) -> Tensor:
        strips = batch.strips()
        if strips is None:
            return super().answers(params, batch, memory)
        first = params["layer1.weight"][0].T.contiguous().numpy()
        entered = strips.times(first, params["layer1.bias"][0].numpy())
        return self._after(torch.from_numpy(entered).unsqueeze(0), params, {})

    def _after(self, x: Tensor, params: Params, unit_masks: dict[str, Tensor]) -> Tensor:
        """From what comes out of the first layer to what comes out of the last."""
        for i in range(1, len(self.hidden) + 1):
            x = linear(params, f"layer{i + 1}", masked_units(x.relu(), f"layer{i}", unit_masks))
        return x

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
        """Backpropagation stated by hand: weight gradients stay products and are never formed."""
        last = len(self.hidden) + 1
        read = [inputs.flatten(2)]  # what each layer reads
        for i in range(1, last):
            read.append(masked_units(linear(params, f"layer{i}", read[-1]).relu(), f"layer{i}", unit_masks))
        losses, error = losses_and_errors(head, linear(params, f"layer{last}", read[-1]))
        gradients: Gradients = {}
        for i in range(last, 0, -1):
            gradients[f"layer{i}.weight"] = Outer(error, read[i - 1])
            gradients[f"layer{i}.bias"] = error.sum(1)
            if i > 1:
                error = masked_units(torch.bmm(error, params[f"layer{i}.weight"]), f"layer{i - 1}", unit_masks)
                error = error * (read[i - 1] > 0)
        return losses, gradients

    def layout(self, rows: RowKind) -> Layout:
        require_kind(self, rows)
        groups = [unit_group(f"layer{i}", f"layer{i + 1}", size, rows) for i, size in enumerate(self.hidden, start=1)]
        if rows != "units":
            groups.append(class_rows(f"layer{len(self.hidden) + 1}", self.outputs))
        return Layout(self.shapes, tuple(groups))

    @property
    def dropout_sites(self) -> dict[str, int]:
        return {f"layer{i}": size for i, size in enumerate(self.hidden, start=1)}
