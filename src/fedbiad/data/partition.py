"""Partitions: which training samples each client holds.

A partition is a pure function of the targets, the number of clients, a generator and the settings; it returns
one array of sample indices per client. The arrays are disjoint and need not cover all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.errors import DataError


@dataclass(frozen=True)
class Settings:
    """What a partition may depend on beside the samples; each reads only its own."""

    classes: int
    labels_per_client: int = 5
    concentration: float = 0.5


Partition = Callable[[IntArray, int, np.random.Generator, Settings], list[IntArray]]


def labels(targets: IntArray, clients: int, rng: np.random.Generator, settings: Settings) -> list[IntArray]:
    """Each client draws k distinct labels; a label's samples are split equally over its owners."""
    _check_labels(settings)
    owned = [rng.choice(settings.classes, settings.labels_per_client, replace=False) for _ in range(clients)]
    return _split_over_owners(targets, owned, rng, settings.classes)


def cyclic(targets: IntArray, clients: int, rng: np.random.Generator, settings: Settings) -> list[IntArray]:
    """Client u owns labels (k*u + j) mod classes, j < k (pFedBayes); split as in `labels`."""
    _check_labels(settings)
    k = settings.labels_per_client
    owned = [(k * u + np.arange(k)) % settings.classes for u in range(clients)]
    return _split_over_owners(targets, owned, rng, settings.classes)


def dirichlet(targets: IntArray, clients: int, rng: np.random.Generator, settings: Settings) -> list[IntArray]:
    """Equal-sized clients whose label distributions are drawn from Dir(concentration) (Hsu et al. 2019)."""
    if not (math.isfinite(settings.concentration) and settings.concentration > 0):
        raise DataError(
            f"concentration is {settings.concentration}; the dirichlet partition needs a number above 0 "
            "(0.1 is strongly skewed, 100 nearly iid)"
        )
    pools = _shuffled_by_label(targets, rng, settings.classes)
    left = np.array([len(pool) for pool in pools], dtype=np.int64)
    members = []
    for _ in range(clients):
        wish = rng.dirichlet(np.full(settings.classes, settings.concentration))
        counts = _draw_counts(wish, left, len(targets) // clients, rng)
        taken = [pool[rest - n : rest] for pool, rest, n in zip(pools, left, counts, strict=True)]
        members.append(np.concatenate(taken))
        left = left - counts
    return members


def iid(targets: IntArray, clients: int, rng: np.random.Generator, settings: Settings) -> list[IntArray]:
    """All samples shuffled and split equally (sizes differ by at most one)."""
    shuffled = rng.permutation(len(targets)).astype(np.int64)
    return list(np.array_split(shuffled, clients))


PARTITIONS: dict[str, Partition] = {
    "labels": labels,
    "cyclic": cyclic,
    "dirichlet": dirichlet,
    "iid": iid,
}


def split(name: str, targets: IntArray, clients: int, rng: np.random.Generator, settings: Settings) -> list[IntArray]:
    """The named partition of the samples, refused if any client would have none."""
    if name not in PARTITIONS:
        raise DataError(f"unknown partition {name!r}; choose one of {', '.join(PARTITIONS)}")
    if clients < 1:
        raise DataError(f"{clients} clients; at least 1 is needed")
    if clients > len(targets):
        raise DataError(
            f"{clients} clients but only {len(targets)} training samples; use at most {len(targets)} clients"
        )
    members = PARTITIONS[name](targets, clients, rng, settings)
    _check_nonempty(name, members)
    return members


def _check_labels(settings: Settings) -> None:
    """Refuse a number of labels per client that the classes cannot give."""
    if not 1 <= settings.labels_per_client <= settings.classes:
        raise DataError(
            f"labels_per_client is {settings.labels_per_client}; the data have {settings.classes} classes: "
            f"choose 1 to {settings.classes}"
        )


def _check_nonempty(name: str, members: list[IntArray]) -> None:
    """Refuse a partition that leaves a client without samples."""
    empty = [str(client) for client, indices in enumerate(members) if len(indices) == 0]
    if empty:
        shown = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise DataError(
            f"the {name} partition leaves {len(empty)} of {len(members)} clients without samples "
            f"(client {shown}); use fewer clients or more labels per client"
        )


def _shuffled_by_label(targets: IntArray, rng: np.random.Generator, classes: int) -> list[IntArray]:
    """Each label's sample indices in random order."""
    return [rng.permutation(np.flatnonzero(targets == label).astype(np.int64)) for label in range(classes)]


def _split_over_owners(
    targets: IntArray, owned: Sequence[npt.NDArray[np.integer]], rng: np.random.Generator, classes: int
) -> list[IntArray]:
    """Deal each label's shuffled samples equally to the clients that own it; unowned labels are left out."""
    parts: list[list[IntArray]] = [[] for _ in owned]
    for label, samples in enumerate(_shuffled_by_label(targets, rng, classes)):
        owners = [client for client, mine in enumerate(owned) if label in mine]
        if owners:
            for client, part in zip(owners, np.array_split(samples, len(owners)), strict=True):
                parts[client].append(part)
    return [np.concatenate(part) for part in parts]


def _draw_counts(wish: npt.NDArray[np.float64], left: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """How many samples of each label `size` draws without replacement take, labels that run out dropped."""
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        # Draws that hit an exhausted label are drawn again from the others: the same law as one by one.
        weights = np.where(counts < left, wish, 0.0)
        if not weights.sum() > 0:
            # A skewed wish can lie wholly on exhausted labels; what remains is then taken as it is mixed.
            weights = (left - counts).astype(np.float64)
        drawn = rng.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts + drawn, left)
    return counts
