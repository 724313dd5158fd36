"""A small convolutional network: two 5x5 convolutions with 2x2 pooling, one hidden layer; filters are its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor

from fedbiad.arrays import Params, Shapes
from fedbiad.models.base import WHOLE, Kept, Memory, Model, class_rows, linear, masked_units, require_kind, unit_group
from fedbiad.rows import Layout, RowKind

KERNEL = 5


@dataclass(frozen=True)
class CNN(Model):
    """`channels` x `side` x `side` images; `side` must be a multiple of 4 (two poolings)."""

    side: int
    filters: tuple[int, int]
    hidden: int
    outputs: int
    channels: int = 1

    @property
    def shapes(self) -> Shapes:
        first, second = self.filters
        return {
            "conv1.weight": (first, self.channels, KERNEL, KERNEL),
            "conv1.bias": (first,),
            "conv2.weight": (second, first, KERNEL, KERNEL),
            "conv2.bias": (second,),
            "hidden.weight": (self.hidden, second * self.map_size),
            "hidden.bias": (self.hidden,),
            "output.weight": (self.outputs, self.hidden),
            "output.bias": (self.outputs,),
        }

    @property
    def map_size(self) -> int:
        """Entries of one pooled map of the second convolution: the columns of the hidden layer that read a filter."""
        return (self.side // 4) ** 2

    def forward(
        self,
        params: Params,
        inputs: Tensor,
        unit_masks: dict[str, Tensor],
        kept: Kept = WHOLE,
        memory: Memory | None = None,
    ) -> Tensor:
        clients, batch = inputs.shape[:2]
        x = inputs.transpose(0, 1).reshape(batch, -1, *inputs.shape[3:])  # clients side by side as channel groups
        for name in ("conv1", "conv2"):
            weight = params[f"{name}.weight"].flatten(0, 1)
            x = F.conv2d(x, weight, params[f"{name}.bias"].flatten(), padding=KERNEL // 2, groups=clients)
            x = F.max_pool2d(x.relu(), 2)
        x = x.reshape(batch, clients, -1).transpose(0, 1)
        x = masked_units(linear(params, "hidden", x).relu(), "hidden", unit_masks)
        return linear(params, "output", x)

    def layout(self, rows: RowKind) -> Layout:
        require_kind(self, rows)
        first, second = self.filters
        groups = [
            unit_group("conv1", "conv2", first, rows),
            unit_group("conv2", "hidden", second, rows, span=self.map_size),
            unit_group("hidden", "output", self.hidden, rows),
        ]
        if rows != "units":
            groups.append(class_rows("output", self.outputs))
        return Layout(self.shapes, tuple(groups))

    @property
    def dropout_sites(self) -> dict[str, int]:
        return {"hidden": self.hidden}
