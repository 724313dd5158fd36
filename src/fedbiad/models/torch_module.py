"""Any `nn.Module` as a model: run through `torch.func.functional_call`, with a layout stated by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedbiad.arrays import Params, Shapes
from fedbiad.errors import LayoutError
from fedbiad.models.base import WHOLE, Kept, Memory, Model
from fedbiad.rows import Layout, RowKind


@dataclass(frozen=True)
class TorchModule(Model):
    """A module whose forward takes a batch of inputs and gives logits [batch, classes].

    Its own weights are U_0. Only the masked step applies (the module's code fixes its sizes). Put `nn.Dropout` inside
    the module for ordinary dropout: it is on in training and off in evaluation.
    """

    module: nn.Module
    stated_layout: Layout

    def __post_init__(self) -> None:
        buffers = [name for name, _ in self.module.named_buffers()]
        if buffers:
            raise LayoutError(
                f"the module keeps running statistics or buffers ({', '.join(buffers[:3])}), which would leak between "
                "clients; use layers without them, e.g. GroupNorm in place of BatchNorm"
            )
        frozen = [name for name, value in self.module.named_parameters() if not value.requires_grad]
        if frozen:
            raise LayoutError(
                f"frozen parameters ({', '.join(frozen[:3])}) would be trained all the same; unfreeze them"
            )
        if self.stated_layout.shapes != self.shapes:
            raise LayoutError(
                f"the layout was stated for {self.stated_layout.shapes}, the module has {self.shapes}; "
                "build it with Layout(module_shapes(module), groups)"
            )

    @property
    def shapes(self) -> Shapes:
        return module_shapes(self.module)

    def init(self, stream: np.random.Generator) -> Params:
        return {name: value.detach().clone() for name, value in self.module.named_parameters()}

    def forward(
        self,
        params: Params,
        inputs: Tensor,
        unit_masks: dict[str, Tensor],
        kept: Kept = WHOLE,
        memory: Memory | None = None,
    ) -> Tensor:
        """One client after another: a module's forward knows no client axis.

        Gradients being recorded means training. The module's own random layers then draw from a generator seeded by
        the data they meet, so that neither the grouping of clients nor earlier draws change them.
        """
        self.module.train(torch.is_grad_enabled())
        outputs = []
        for i, x in enumerate(inputs):
            own = {name: value[i] for name, value in params.items()}
            with _seeded(_fingerprint(own, x)):
                outputs.append(torch.func.functional_call(self.module, own, (x,)))
        return torch.stack(outputs)

    def layout(self, rows: RowKind) -> Layout:
        return self.stated_layout

    @property
    def compacts(self) -> bool:
        return False


def module_shapes(module: nn.Module) -> Shapes:
    """Shape of every parameter of a module: what a hand-made `Layout` is stated for."""
    return {name: tuple(value.shape) for name, value in module.named_parameters()}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's own generator seeded for a while (`torch.manual_seed` also walks the stack, for other devices)."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def _fingerprint(params: Params, inputs: Tensor) -> int:
    total = float(inputs.detach().double().sum() + sum(v.detach().double().sum() for v in params.values()))
    return hash(total) & 0x7FFF_FFFF_FFFF_FFFF
