"""Text among clients: each client's stream of tokens, the windows it trains on, and those a model is judged on.

A window is `bptt` tokens and, as targets, the tokens that follow each of them. What is left at a stream's end is less
than a window (or a row of them); where the windows begin is drawn anew each round, so no token is left out for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbiad import streams
from fedbiad.arrays import IntArray, Pattern
from fedbiad.cohort import Cohort
from fedbiad.data.partition import Settings, split
from fedbiad.data.text import Corpus, Tokens
from fedbiad.errors import DataError
from fedbiad.training.batches import Batch


class LocalText:
    """Windows of a block of clients, taken from a common pool of tokens.

    A batch has inputs [clients, batch, bptt] and targets (and weight) [clients, batch x bptt], time running fastest.
    """

    def __init__(
        self, tokens: Tensor, spans: list[tuple[int, int]], bptt: int, starts: IntArray, continues: Pattern
    ) -> None:
        self._tokens, self._spans, self._bptt = tokens, spans, bptt
        self._starts, self._continues = torch.from_numpy(starts), torch.from_numpy(continues)
        self._whole: Batch | None = None

    def batch(self, step: int) -> Batch:
        """The windows of iteration `step`."""
        positions = self._starts[:, step, :, None] + torch.arange(self._bptt + 1)
        windows = self._tokens[positions]
        return Batch(windows[..., :-1], windows[..., 1:].flatten(1), continues=self._continues[:, step])

    def present(self, classes: int) -> Pattern:
        """Which words each client has at all [clients, classes]."""
        found = np.zeros((len(self._spans), classes), dtype=np.bool_)
        for i, (start, end) in enumerate(self._spans):
            found[i, self._tokens[start:end].numpy()] = True
        return found

    def whole(self) -> Batch:
        """Every target of every client once, in windows that each begin anew; clients padded to the largest."""
        if self._whole is None:
            rows = max(-(-(end - start - 1) // self._bptt) for start, end in self._spans)
            places = torch.arange(rows * self._bptt)
            ends = torch.tensor([[end - start - 1] for start, end in self._spans])
            positions = torch.tensor([[start] for start, _ in self._spans]) + torch.minimum(places, ends - 1)
            inputs = self._tokens[positions].view(len(self._spans), rows, self._bptt)
            continues = torch.zeros(len(self._spans), dtype=torch.bool)
            self._whole = Batch(inputs, self._tokens[positions + 1], (places < ends).float(), continues)
        return self._whole


@dataclass(frozen=True, eq=False)
class LanguageData:
    """The clients' streams as spans of one pool of tokens, and the tokens the global model is judged on.

    |D^k|, which weighs a client in the mean, is its number of tokens. `left_out` names the clients whose stream is
    shorter than a window; they are not among the clients, and `unused` counts their tokens.
    """

    tokens: Tensor  # int64, all clients' streams back to back
    spans: tuple[tuple[int, int], ...]  # client -> where its stream begins and ends
    names: tuple[str, ...]
    eval_tokens: Tensor
    eval_split: Literal["test", "validation"]
    classes: int  # words of the vocabulary
    bptt: int
    left_out: tuple[str, ...]
    unused: int
    vocabulary: tuple[str, ...] = ()
    """The words themselves, by number."""
    carry: bool = False
    """Whether clients read their streams in order, their state carried from one window to the next."""

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.spans)

    @cached_property
    def sizes(self) -> IntArray:
        """How many tokens each client holds."""
        return np.array([end - start for start, end in self.spans], dtype=np.int64)

    @property
    def eval_size(self) -> int:
        """How many words a model is asked for when it is judged."""
        return len(self.eval_tokens) - 1

    def evaluation(self) -> Iterator[Batch]:
        """The windows a model is judged on."""
        return evaluation_windows(self.eval_tokens, self.bptt)

    def local(self, cohort: Cohort, iterations: int, batch: int) -> LocalText:
        """What a block of clients trains on in a round of `iterations`, `batch` windows each.

        Without `carry` windows are drawn without replacement, in shuffled epochs. With it the stream is cut into
        `batch` lanes that are read side by side, each from its beginning, anew every round and epoch.
        """
        spans = [self.spans[client] for client in cohort.ids]
        targets = np.array([end - start - 1 for start, end in spans], dtype=np.int64)
        stride = self.bptt * (batch if self.carry else 1)
        turns = np.maximum(targets // stride, 1)  # of an epoch
        spare = np.maximum(targets - turns * stride, 0)
        shifts = [start + cohort.stream(i, "windows").integers(spare[i] + 1) for i, (start, _) in enumerate(spans)]
        if self.carry:
            turn = np.arange(iterations) % turns[:, None]
            positions = lane_starts(targets, self.bptt, batch)[:, None, :] + self.bptt * turn[:, :, None]
        else:
            turn = np.zeros((len(spans), iterations), dtype=np.int64)
            visits = cohort.schedule(turns.tolist(), iterations * batch)
            positions = self.bptt * visits.reshape(len(spans), iterations, batch)
        starts = np.array(shifts, dtype=np.int64)[:, None, None] + positions
        return LocalText(self.tokens, spans, self.bptt, starts, turn > 0)


def lane_starts(targets: IntArray, bptt: int, batch: int) -> IntArray:
    """Where each lane begins [clients, batch]: one after another; with less than a window for each they overlap."""
    lane = np.arange(batch, dtype=np.int64)
    following = lane * bptt * (targets // (bptt * batch))[:, None]
    overlapping = lane * (targets - bptt)[:, None] // max(batch - 1, 1)
    return np.where((targets >= bptt * batch)[:, None], following, overlapping)


def federate_text(
    corpus: Corpus,
    *,
    clients: int = 100,
    seed: int,
    bptt: int,
    evaluate_on: Literal["test", "validation"] = "test",
    carry: bool = False,
) -> LanguageData:
    """Deal the training part to clients: by user where users are named, else shuffled lines in equal numbers."""
    if evaluate_on not in ("test", "validation"):
        raise DataError(f"evaluate_on is {evaluate_on!r}; choose 'test' or 'validation'")
    if bptt < 1:
        raise DataError(f"bptt is {bptt}; a window has at least 1 token")
    if corpus.users and clients != len(corpus.users):
        raise DataError(f"{corpus.name}: {clients} clients, but each of its {len(corpus.users)} users is one")
    judged = corpus.test if evaluate_on == "test" else corpus.valid
    if len(judged) < 2:
        raise DataError(f"{corpus.name}: its {evaluate_on} part has {len(judged)} tokens; at least 2 are needed")
    dealt = _by_user(corpus) if corpus.users else _by_line(corpus, clients, seed)
    kept = {name: stream for name, stream in dealt.items() if len(stream) > bptt}
    if not kept:
        raise DataError(
            f"{corpus.name}: no client has the {bptt + 1} tokens of a window; use a smaller bptt or fewer clients"
        )
    ends = np.cumsum([len(stream) for stream in kept.values()]).tolist()
    return LanguageData(
        tokens=torch.from_numpy(np.concatenate(list(kept.values())).astype(np.int64)),
        spans=tuple(zip([0, *ends[:-1]], ends, strict=True)),
        names=tuple(kept),
        eval_tokens=torch.from_numpy(judged.astype(np.int64)),
        eval_split=evaluate_on,
        classes=corpus.words,
        bptt=bptt,
        left_out=tuple(name for name in dealt if name not in kept),
        unused=len(corpus.train) - ends[-1],
        vocabulary=corpus.vocabulary,
        carry=carry,
    )


def evaluation_windows(tokens: Tensor, bptt: int, lanes: int = 20) -> Iterator[Batch]:
    """The whole stream in `lanes` read side by side, state carried: inputs [1, lanes, bptt], each target once.

    A lane's last window is padded with weight 0. Each lane begins with the state 0, so one lane alone is exact.
    """
    targets = len(tokens) - 1
    length = -(-targets // lanes)
    for begin in range(0, length, bptt):
        places = begin + torch.arange(bptt)
        positions = length * torch.arange(lanes)[:, None] + places
        real = (places < length) & (positions < targets)
        inside = positions.clamp(max=targets - 1)
        weight = real.float().flatten().unsqueeze(0)
        following = torch.tensor([begin > 0])
        yield Batch(tokens[inside].unsqueeze(0), tokens[inside + 1].flatten().unsqueeze(0), weight, following)


def _by_user(corpus: Corpus) -> dict[str, Tokens]:
    """Each user's own tokens."""
    ends = np.cumsum([tokens for _, tokens in corpus.users])
    return {user: corpus.train[end - tokens : end] for (user, tokens), end in zip(corpus.users, ends, strict=True)}


def _by_line(corpus: Corpus, clients: int, seed: int) -> dict[str, Tokens]:
    """Lines shuffled over clients in equal numbers (to within one), each client's one after another."""
    ends = np.flatnonzero(corpus.train == corpus.eos).astype(np.int64) + 1
    lines = np.split(corpus.train, ends)[:-1]
    rng = streams.stream(seed, 0, streams.SERVER, "partition")
    members = split("iid", ends, clients, rng, Settings(classes=corpus.words))
    return {str(client): np.concatenate([lines[line] for line in own]) for client, own in enumerate(members)}
