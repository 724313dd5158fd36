"""Where clients' states (scores E^k, residuals, ...) live between rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import ClientState

COMPRESSOR = "compressor."
"""Begins the names of what a compressor remembers: large, so never stacked and never copied."""


class MemoryStore:
    """States of the clients seen so far; `fresh` makes the state of one never seen."""

    def __init__(self, fresh: Callable[[], ClientState]) -> None:
        self._fresh = fresh
        self._states: dict[int, ClientState] = {}
        self._changed: set[int] = set()

    def __len__(self) -> int:
        """Clients seen so far."""
        return len(self._states)

    def get(self, ids: Sequence[int]) -> ClientState:
        """The states of a block of clients, stacked [clients, ...], without what a compressor remembers."""
        own = [self._states.get(client) or self._fresh() for client in ids]
        return {name: np.stack([state[name] for state in own]) for name in own[0] if not name.startswith(COMPRESSOR)}

    def remembered(self, client: int) -> ClientState:
        """What the compressor of one client remembers; not to be changed in place."""
        own = self._states.get(client) or self._fresh()
        return {name.removeprefix(COMPRESSOR): part for name, part in own.items() if name.startswith(COMPRESSOR)}

    def remember(self, client: int, parts: ClientState) -> None:
        """What it remembers from now on."""
        own = self._states.get(client) or self._fresh()
        self._states[client] = {**own, **{COMPRESSOR + name: part for name, part in parts.items()}}
        self._changed.add(client)

    def put(self, ids: Sequence[int], state: ClientState, keep: npt.NDArray[np.bool_]) -> None:
        """Remember the states of the clients of a block for which `keep` is true."""
        for i in np.flatnonzero(keep).tolist():
            own = self._states.get(ids[i]) or self._fresh()
            self._states[ids[i]] = {**own, **{name: value[i].copy() for name, value in state.items()}}
            self._changed.add(ids[i])

    def dump(self, changed: bool = False) -> dict[str, npt.NDArray[np.generic]]:
        """All states as arrays: `clients` [seen] and each part of the state [seen, ...], by client number.

        With `changed`, only of the clients whose state was put since `clean`.
        """
        ids = sorted(self._changed if changed else self._states)
        if not ids or not self._states[ids[0]]:
            return {}
        parts = {name: np.stack([self._states[k][name] for k in ids]) for name in self._states[ids[0]]}
        return {"clients": np.array(ids, dtype=np.int64), **parts}

    def clean(self) -> None:
        """What is there now is saved."""
        self._changed.clear()

    def load(self, dumped: dict[str, npt.NDArray[np.generic]]) -> None:
        """Take over what `dump` gave."""
        names = [name for name in dumped if name != "clients"]
        ids = dumped["clients"].tolist() if dumped else []
        self._states = {int(k): {name: dumped[name][i].copy() for name in names} for i, k in enumerate(ids)}
        self._changed.clear()
