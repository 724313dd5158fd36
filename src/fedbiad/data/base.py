"""Data sets as standardised tensors, and their samples dealt out to clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedbiad import streams
from fedbiad.arrays import IntArray
from fedbiad.cohort import Cohort
from fedbiad.data import digits, mnist
from fedbiad.data.mnist import Arrays, Bytes
from fedbiad.data.partition import Settings, split
from fedbiad.errors import DataError
from fedbiad.training.batches import Batch, Derived, LocalData, LocalSamples, judged


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples: standardised float32 inputs [n, 1, side, side] and int64 targets [n]."""

    name: str
    classes: int
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


@dataclass(frozen=True)
class Loader:
    """How a data set is read: its stored arrays, its whitest pixel, its classes and the sizes it can have."""

    read: Callable[[], Arrays]
    white: int
    classes: int
    sizes: tuple[int, ...]  # the native size first


DATASETS: dict[str, Loader] = {
    "mnist": Loader(mnist.read_mnist, white=255, classes=10, sizes=(28, 32)),
    "fmnist": Loader(mnist.read_fmnist, white=255, classes=10, sizes=(28, 32)),
    "digits": Loader(digits.read, white=16, classes=10, sizes=(8,)),
}


def load(name: str, image_size: int | None = None) -> Dataset:
    """The named data set, standardised with its training pixels' mean and std; None is its native size."""
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}; choose one of {', '.join(DATASETS)}")
    loader = DATASETS[name]
    size = loader.sizes[0] if image_size is None else image_size
    if size not in loader.sizes:
        raise DataError(f"{name} has no image size {size}; choose {' or '.join(map(str, loader.sizes))}")
    train_images, train_targets, test_images, test_targets = loader.read()
    mean, std = pixel_statistics(train_images, loader.white)
    table = ((np.arange(loader.white + 1) / loader.white - mean) / std).astype(np.float32)
    return Dataset(
        name=name,
        classes=loader.classes,
        train_inputs=_standardise(train_images, size, table),
        train_targets=torch.from_numpy(train_targets.astype(np.int64)),
        test_inputs=_standardise(test_images, size, table),
        test_targets=torch.from_numpy(test_targets.astype(np.int64)),
    )


def pixel_statistics(images: Bytes, white: int) -> tuple[float, float]:
    """Mean and (population) std of the pixels scaled to [0, 1]."""
    # Counting block by block is exact and needs no float64 copy of all images.
    counts = sum(
        np.bincount(images[start : start + 1000].ravel(), minlength=white + 1) for start in range(0, len(images), 1000)
    )
    values = np.arange(white + 1) / white
    mean = float(np.average(values, weights=counts))
    return mean, float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))


def _standardise(images: Bytes, size: int, table: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Tensor:
    """Images zero-padded to the size, each pixel replaced by its standardised value."""
    margin = (size - images.shape[1]) // 2
    padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    return torch.from_numpy(table[padded]).unsqueeze(1)


class ClientData(Protocol):
    """What a run needs to know of its data, whatever they are."""

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        ...

    @property
    def sizes(self) -> IntArray:
        """|D^k| of every client [clients]."""
        ...

    @property
    def classes(self) -> int:
        """How many answers there are."""
        ...

    @property
    def eval_size(self) -> int:
        """On how many samples a model is judged."""
        ...

    def local(self, cohort: Cohort, iterations: int, batch: int) -> LocalSamples:
        """What a block of clients trains on in a round."""
        ...

    def evaluation(self) -> Iterator[Batch]:
        """The samples a model is judged on [1, samples, ...]."""
        ...


EVAL_BATCH = 1000


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The clients' samples in one pool, one client after another, and those the global model is judged on.

    `unused` counts the samples that no client holds; a held-out validation part is not among them.
    """

    inputs: Tensor
    targets: Tensor
    starts: IntArray
    """Where each client's samples begin in the pool, and where the last one's end [clients + 1]."""
    eval_inputs: Tensor
    eval_targets: Tensor
    eval_split: Literal["test", "validation"]
    classes: int
    unused: int
    derived: Derived = field(default_factory=Derived)

    @classmethod
    def dealt(
        cls, inputs: Tensor, targets: Tensor, members: Sequence[IntArray], eval_inputs: Tensor, eval_targets: Tensor,
        eval_split: Literal["test", "validation"], classes: int,
    ) -> FederatedData:  # fmt: skip
        """Client k gets the samples `members[k]`."""
        order = torch.from_numpy(np.concatenate(members))
        starts = np.cumsum([0, *(len(own) for own in members)])
        unused = len(targets) - len(order)
        return cls(inputs[order], targets[order], starts, eval_inputs, eval_targets, eval_split, classes, unused)

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.starts) - 1

    @cached_property
    def sizes(self) -> IntArray:
        """How many samples each client holds."""
        return np.diff(self.starts)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of the inputs of one sample."""
        return tuple(self.inputs.shape[1:])

    def span(self, client: int) -> slice:
        """Where one client's samples stand in the pool."""
        return slice(int(self.starts[client]), int(self.starts[client + 1]))

    @property
    def eval_size(self) -> int:
        """On how many samples a model is judged."""
        return len(self.eval_targets)

    def local(self, cohort: Cohort, iterations: int, batch: int) -> LocalData:
        """What a block of clients trains on in a round: shuffled epochs, one after another."""
        spans = [self.span(client) for client in cohort.ids]
        schedule = cohort.schedule([own.stop - own.start for own in spans], iterations * batch)
        return LocalData(self.inputs, self.targets, spans, schedule, batch, self.derived)

    def evaluation(self) -> Iterator[Batch]:
        """The samples a model is judged on [1, samples, ...]."""
        for start in range(0, len(self.eval_targets), EVAL_BATCH):
            part = slice(start, start + EVAL_BATCH)
            yield judged(self.eval_inputs[part], self.eval_targets[part], self.derived, start)


def federate(
    dataset: Dataset,
    *,
    partition: str,
    clients: int,
    seed: int,
    labels_per_client: int = 5,
    concentration: float = 0.5,
    evaluate_on: Literal["test", "validation"] = "test",
    validation_size: int | None = None,
) -> FederatedData:
    """Deal the training samples to clients; judge on the test set, or on training samples held out for it.

    With "validation" the last `validation_size` training samples (default: one sixth) belong to no client
    and the test set is not touched; with "test" `validation_size` has no effect.
    """
    kept = len(dataset.train_targets)
    if evaluate_on == "validation":
        kept -= _checked_validation_size(validation_size, kept)
    elif evaluate_on != "test":
        raise DataError(f"evaluate_on is {evaluate_on!r}; choose 'test' or 'validation'")
    inputs, targets = dataset.train_inputs[:kept], dataset.train_targets[:kept]
    rng = streams.stream(seed, 0, streams.SERVER, "partition")
    settings = Settings(dataset.classes, labels_per_client, concentration)
    members = split(partition, targets.numpy(), clients, rng, settings)
    on_test = evaluate_on == "test"
    judged = (
        (dataset.test_inputs, dataset.test_targets)
        if on_test
        else (dataset.train_inputs[kept:], dataset.train_targets[kept:])
    )
    return FederatedData.dealt(inputs, targets, members, *judged, evaluate_on, dataset.classes)


def _checked_validation_size(wanted: int | None, samples: int) -> int:
    """The number of training samples to hold out, at least one and not all of them."""
    size = samples // 6 if wanted is None else wanted
    if not 1 <= size < samples:
        raise DataError(f"validation_size is {size}; with {samples} training samples choose 1 to {samples - 1}")
    return size
