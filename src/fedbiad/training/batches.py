"""The data of a block of clients: mini-batches by schedule, or everything a client has, padded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import IntArray, Pattern
from fedbiad.training.strips import Picture, Strips


@dataclass(frozen=True)
class Batch:
    """Inputs [clients, batch, ...], targets [clients, batch], weight 0 where a sample is padding.

    `continues` [clients]: whose sequences follow on those of the batch before; None where samples are no sequences.
    `strips()` are the inputs of a model's only client once more, if they are mostly background.
    """

    inputs: Tensor
    targets: Tensor
    weight: Tensor | None = None
    continues: Tensor | None = None
    strips: Callable[[], Strips | None] = lambda: None


class LocalSamples(Protocol):
    """What a block of clients trains on in a round."""

    def batch(self, step: int) -> Batch:
        """The mini-batch of iteration `step`."""
        ...

    def whole(self) -> Batch:
        """Every sample of every client, clients padded to the largest."""
        ...

    def present(self, classes: int) -> Pattern:
        """Which classes each client has at all [clients, classes]."""
        ...


Found = TypeVar("Found")


class Derived:
    """What was found out of clients' samples, the last used kept; `limit` is how many bytes of it.

    Several threads may ask.
    """

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit, self._held, self._kept = limit, 0, OrderedDict[tuple[str, int], Any]()
        self._lock = Lock()

    def of(self, what: str, first: int, find: Callable[[], Found]) -> Found:
        """`find()`, known by its name and the client's first sample."""
        return self.each(what, [first], lambda _: find())[0]

    def each(self, what: str, firsts: list[int], find: Callable[[int], Found]) -> list[Found]:
        """The same of many clients, `find` told the place of one among them."""
        keys: list[tuple[str, int]] = [(what, first) for first in firsts]
        with self._lock:
            found: dict[tuple[str, int], Found] = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        for place, key in enumerate(keys):
            if key not in found:
                found[key] = new = find(place)
                with self._lock:
                    self._keep(key, new)
        return [found[key] for key in keys]

    def _keep(self, key: tuple[str, int], found: object) -> None:
        if key not in self._kept:
            self._kept[key] = found
            self._held += _size(found)
        while self._held > self._limit:
            self._held -= _size(self._kept.popitem(last=False)[1])

    def __reduce__(self) -> tuple[type[Derived], tuple[int]]:
        """Another process begins with none."""
        return Derived, (self._limit,)


def judged(inputs: Tensor, targets: Tensor, derived: Derived, first: int) -> Batch:
    """Samples a model is judged on, from the number `first` on, as a batch of one client."""

    def strips() -> Strips | None:
        return derived.of("judged", first, lambda: Strips.of_samples(inputs.flatten(1).numpy()))

    return Batch(inputs.unsqueeze(0), targets.unsqueeze(0), strips=strips)


def _size(found: object) -> int:
    return 256 + int(getattr(found, "nbytes", 0))  # an entry takes room, too


@dataclass(frozen=True)
class Parts:
    """Of each client its rows of a tensor, cut out when they are looked at."""

    whole: Tensor
    spans: list[slice]

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, client: int) -> Tensor:
        return self.whole[self.spans[client]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self.whole[own] for own in self.spans)


class Facts(NamedTuple):
    """What the dual form knows of a client's samples X: X X^T + 1, and what differs from the background."""

    gram: Tensor
    picture: Picture | None

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.gram.nbytes if self.picture is None else self.picture.nbytes


def _gram(x: Tensor) -> Tensor:
    return torch.addmm(x.new_ones(1, 1), x, x.T)


class LocalData:
    """Samples of a block of clients in a common pool: of each client a run of consecutive ones."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        spans: list[slice],
        schedule: IntArray,
        batch: int,
        derived: Derived | None = None,
    ) -> None:
        self._inputs, self._targets, self.spans, self._batch = inputs, targets, spans, batch
        self._derived = derived or Derived(0)
        self.schedule = schedule
        """Which of its own samples each client visits [clients, steps x batch]."""
        self._whole: Batch | None = None

    @cached_property
    def _visits(self) -> Tensor:
        starts = np.array([own.start for own in self.spans])
        return torch.from_numpy(self.schedule + starts[:, None])

    @cached_property
    def vectors(self) -> Parts:
        """Each client's inputs as vectors [samples, inputs], not copied."""
        return Parts(self._inputs.flatten(1), self.spans)

    @property
    def targets(self) -> Parts:
        """Each client's targets [samples], not copied."""
        return Parts(self._targets, self.spans)

    @property
    def all_targets(self) -> IntArray:
        """Those of all clients, one after another."""
        targets = self._targets.numpy()
        return np.concatenate([targets[own] for own in self.spans])

    def gram(self, client: int) -> Tensor:
        """X X^T + 1 of the client at this place: its samples with a 1 appended for the bias."""
        return self._derived.of("gram", self.spans[client].start, lambda: _gram(self.vectors[client]))

    def facts(self) -> list[Facts]:
        """Gram matrix and picture of every client."""

        def find(client: int) -> Facts:
            x = self.vectors[client]
            picture = Picture.of(x.numpy())
            return Facts(_gram(x) if picture is None else torch.from_numpy(picture.gram), picture)

        return self._derived.each("facts", [own.start for own in self.spans], find)

    @property
    def sizes(self) -> list[int]:
        """How many samples each client has."""
        return [own.stop - own.start for own in self.spans]

    def batch(self, step: int) -> Batch:
        """The mini-batch of iteration `step`."""
        chosen = self._visits[:, step * self._batch : (step + 1) * self._batch]
        return Batch(self._inputs[chosen], self._targets[chosen])

    def present(self, classes: int) -> Pattern:
        """Which classes each client has at all [clients, classes]."""
        found = np.zeros((len(self.spans), classes), dtype=np.bool_)
        for i, own in enumerate(self.spans):
            found[i, self._targets[own].numpy()] = True
        return found

    def whole(self) -> Batch:
        """Every sample of every client, clients padded to the largest."""
        if self._whole is None:
            sizes = np.array(self.sizes)
            padded = np.stack([np.resize(np.arange(own.start, own.stop), sizes.max()) for own in self.spans])
            real = torch.from_numpy(np.arange(sizes.max())[None, :] < sizes[:, None]).to(self._inputs.dtype)
            chosen = torch.from_numpy(padded)
            self._whole = Batch(self._inputs[chosen], self._targets[chosen], real)
        return self._whole
