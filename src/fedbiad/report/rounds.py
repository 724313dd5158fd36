"""What the page needs of a line of rounds.jsonl, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError


@dataclass(frozen=True)
class Bytes:
    """A number of bytes by each count."""

    paper: float | None = None
    encoded: float | None = None
    transport: float | None = None


@dataclass(frozen=True)
class Watched:
    """What the watched client told of a round; `resampled_at` are positions in `losses`."""

    client: int
    losses: list[float | None]
    resampled_at: list[int] = field(default_factory=list)
    score: list[float | None] | None = None


@dataclass(frozen=True)
class Round:
    """What the page needs of a line of rounds.jsonl."""

    round: int
    accuracy: float | None
    clients: Annotated[int, Field(ge=1)]
    train_loss: float | None
    upload: Bytes
    download: Bytes
    total_upload: Bytes
    seconds: dict[str, float | None]
    row_holders: list[int] | None = None
    watched: Watched | None = None


_ROUNDS = TypeAdapter(list[Round])


def check(records: Sequence[Any]) -> list[Round]:
    """The records of a run as rounds; raises ValueError with the first problem."""
    try:
        rounds = _ROUNDS.validate_python(records)
    except ValidationError as error:
        first = error.errors()[0]
        line, *where = first["loc"]
        name = ".".join(map(str, where)) or "record"
        raise ValueError(f"line {int(line) + 1}, {name}: {first['msg'].lower()}") from None
    if [r.round for r in rounds] != list(range(1, len(rounds) + 1)):
        raise ValueError("its lines are not rounds 1, 2, ...")
    return rounds
