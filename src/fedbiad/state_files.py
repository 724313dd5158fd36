"""Clients' states in files, one a shard of clients; memory holds where each client's state stands, and no state.

A process that is killed at any moment leaves of every client the old state or the new one, never a part of each: a new
state goes to a place that no client needs, and only then does the old one's place become free. Each carries a number
that counts up and a checksum; when files are opened again, the last whole state of a client counts. After a power
failure the system may have kept the writes in another order: a run goes on from its checkpoint, as it always does.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from fedbiad.arrays import ClientState
from fedbiad.errors import RunError
from fedbiad.state import Store
from fedbiad.state_records import Form

SHARD = 1024
"""Clients of a file."""


class FileStore(Store):
    """States of the clients seen so far, in a directory of its own, or in a temporary one."""

    def __init__(self, fresh: Callable[[], ClientState], directory: Path | None = None) -> None:
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="fedbiad-states-"))
            weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        super().__init__(fresh, Shards(directory))
        self._directory = directory

    def close(self) -> None:
        """Remove the files: what a run needs to go on is in its checkpoints."""
        self._states.clear()
        with contextlib.suppress(OSError):
            self._directory.rmdir()


class Shards:
    """The files of a directory as one mapping; a file is looked into when one of its clients is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shards: dict[int, Shard | None] = {int(path.stem): None for path in self._files()}

    def get(self, client: int) -> ClientState | None:
        """The state of a client, None if it was never seen."""
        return self._shard(client // SHARD).read(client)

    def __getitem__(self, client: int) -> ClientState:
        found = self.get(client)
        if found is None:
            raise KeyError(client)
        return found

    def __setitem__(self, client: int, state: ClientState) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._shard(client // SHARD).write(client, state)
        except OSError as error:
            raise RunError(f"clients' states cannot be written to {self._directory} ({error}); make room, or make it "
                           "writable, then go on with `fedbiad resume`") from None  # fmt: skip

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._shards):
            yield from self._shard(number).clients

    def __len__(self) -> int:
        return sum(self._shard(number).seen for number in self._shards)

    def clear(self) -> None:
        """Forget all clients."""
        self._shards.clear()
        for path in self._files():
            path.unlink()

    def _files(self) -> list[Path]:
        return list(self._directory.glob("*.states"))

    def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = Shard(self._directory / f"{number:06d}.states", number * SHARD)
        return shard


class Shard:
    """One file: the form of a state, then places for states, numbered from 0."""

    def __init__(self, path: Path, first: int) -> None:
        self._path, self._first = path, first
        self._places = np.full(SHARD, -1, dtype=np.int32)
        """Where each client's state is, -1 if it was never seen."""
        self.seen = 0
        """How many clients were."""
        self._free: list[int] = []
        self._end = self._turn = 0
        self._form: Form | None = None
        if path.exists():
            self._recover()

    @property
    def clients(self) -> list[int]:
        """The clients seen."""
        return [self._first + int(k) for k in np.flatnonzero(self._places >= 0)]

    def read(self, client: int) -> ClientState | None:
        """The state of a client, None if it was never seen."""
        place = int(self._places[client - self._first])
        if self._form is None or place < 0:
            return None
        with self._path.open("rb") as file:
            record = _record(file, self._form, place)
        head = self._form.whole(record)
        if head is None or head[1] != client:
            raise RunError(f"{self._path} is damaged (client {client}); go on from the last checkpoint with "
                           "`fedbiad resume`")  # fmt: skip
        return self._form.unpack(record)

    def write(self, client: int, state: ClientState) -> None:
        """Remember this state instead of the client's old one."""
        form = self._form or self._begin(Form.of(state))
        if form != Form.of(state):
            raise ValueError(f"client {client}: a state of another form than those before it")
        place = self._free[-1] if self._free else self._end
        with self._path.open("r+b") as file:
            file.seek(len(form.line) + place * form.size)
            file.write(form.pack(state, client, self._turn))
        # all of it is there now
        if self._free:
            self._free.pop()
        self._end, self._turn = max(self._end, place + 1), self._turn + 1
        old = int(self._places[client - self._first])
        self._places[client - self._first] = place
        if old < 0:
            self.seen += 1
        else:
            self._free.append(old)

    def _begin(self, form: Form) -> Form:
        self._path.write_bytes(form.line)
        self._form = form
        return form

    def _recover(self) -> None:
        """Look for the last whole state of every client."""
        newest: dict[int, int] = {}
        with self._path.open("rb") as file:
            line = file.readline()
            if not line.endswith(b"\n"):
                return  # killed before the first state
            form = self._form = Form.parse(line)
            while record := _record(file, form, self._end):
                turn, client = form.whole(record) or (-1, -1)
                if turn > newest.get(client, -1):
                    newest[client] = turn
                    self._places[client - self._first] = self._end
                self._end += 1
        self._turn, self.seen = max(newest.values(), default=-1) + 1, len(newest)
        self._free = sorted(set(range(self._end)) - set(self._places.tolist()))


def _record(file: BufferedReader, form: Form, place: int) -> bytearray:
    """What is at a place, as much of it as is there."""
    record = bytearray(form.size)
    file.seek(len(form.line) + place * form.size)
    del record[file.readinto(record) :]
    return record
