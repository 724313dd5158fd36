"""Where clients' states (scores E^k, residuals, ...) live between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import ClientState

COMPRESSOR = "compressor."
"""Begins the names of what a compressor remembers."""


@dataclass(frozen=True)
class States:
    """The states of a block of clients: stacked [clients, ...], and what each one's compressor remembers, if anything.

    The latter is large: never stacked, and not to be changed in place.
    """

    ids: tuple[int, ...]
    own: ClientState
    remembered: dict[int, ClientState]

    def part(self, members: slice) -> States:
        """Those of some of the clients."""
        ids = self.ids[members]
        remembered = {client: self.remembered[client] for client in ids if client in self.remembered}
        return States(ids, {name: part[members] for name, part in self.own.items()}, remembered)


class Shelf(Protocol):
    """What holds the states of the clients seen, by client."""

    def get(self, client: int, /) -> ClientState | None: ...

    def __getitem__(self, client: int, /) -> ClientState: ...

    def __setitem__(self, client: int, state: ClientState, /) -> None: ...

    def __iter__(self) -> Iterator[int]: ...

    def __len__(self) -> int: ...

    def clear(self) -> None: ...


class Store:
    """States of the clients seen so far; `fresh` makes the state of one never seen."""

    def __init__(self, fresh: Callable[[], ClientState], states: Shelf) -> None:
        self._fresh, self._states = fresh, states
        self._changed: set[int] = set()

    def __len__(self) -> int:
        """Clients seen so far."""
        return len(self._states)

    def lend(self, ids: Sequence[int]) -> States:
        """The states of a block of clients."""
        own = [self._states.get(client) or self._fresh() for client in ids]
        stacked = {name: np.stack([state[name] for state in own]) for name in own[0] if not name.startswith(COMPRESSOR)}
        remembered = {
            client: {name.removeprefix(COMPRESSOR): part for name, part in state.items() if name.startswith(COMPRESSOR)}
            for client, state in zip(ids, own, strict=True)
        }
        return States(tuple(ids), stacked, {client: parts for client, parts in remembered.items() if parts})

    def take(self, states: States) -> None:
        """What the clients of a block remember from now on."""
        for i, client in enumerate(states.ids):
            remembered = states.remembered.get(client, {})
            self._states[client] = {
                **{name: value[i].copy() for name, value in states.own.items()},
                **{COMPRESSOR + name: part for name, part in remembered.items()},
            }
            self._changed.add(client)

    def dump(self, changed: bool = False) -> dict[str, npt.NDArray[np.generic]]:
        """All states as arrays: `clients` [seen] and each part of the state [seen, ...], by client number.

        With `changed`, only of the clients whose state was put since `clean`.
        """
        ids = sorted(self._changed if changed else self._states)
        first = self._states[ids[0]] if ids else {}
        if not first:
            return {}
        parts = {name: np.empty((len(ids), *part.shape), part.dtype) for name, part in first.items()}
        for i, client in enumerate(ids):
            state = self._states[client]  # read once where states are in files
            for name, part in parts.items():
                part[i] = state[name]
        return {"clients": np.array(ids, dtype=np.int64), **parts}

    def clean(self) -> None:
        """What is there now is saved."""
        self._changed.clear()

    def load(self, dumped: dict[str, npt.NDArray[np.generic]]) -> None:
        """Take over what `dump` gave."""
        names = [name for name in dumped if name != "clients"]
        ids = dumped["clients"].tolist() if dumped else []
        self._states.clear()
        for i, client in enumerate(ids):
            self._states[client] = {name: dumped[name][i].copy() for name in names}
        self._changed.clear()

    def close(self) -> None:
        """End what the store needs outside this process."""


class MemoryStore(Store):
    """All states in memory."""

    def __init__(self, fresh: Callable[[], ClientState]) -> None:
        super().__init__(fresh, {})
