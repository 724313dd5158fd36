"""Text corpora as token ids: Penn Treebank, WikiText-2 and comments of Reddit users.

Files are looked up and verified as those of the images are (see store.py). Tokens are what blanks separate; every line
(or comment) ends with `<eos>`. Words are numbered by how often the training part has them, ties by the alphabet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedbiad.data.store import read_file
from fedbiad.errors import DataError

Tokens = npt.NDArray[np.int32]
Parts = dict[str, list[str]]  # the words of each part, before they are numbered
Users = tuple[tuple[str, int], ...]
"""Who wrote the training part, in its order: name and number of tokens; empty if nobody is named."""
Collection = Literal["college", "pushshift"]

PARTS = ("train", "valid", "test")
EOS, UNK = "<eos>", "<unk>"
CORPORA = ("ptb", "wikitext2", "reddit")
COLLECTIONS = {
    "college": "reddit_college_top200.jsonl",
    "pushshift": "reddit_pushshift_2005-12_2006-03_top200.jsonl",
}
NO_SOURCE = (
    "no public source has these collections of comments; point FEDBIAD_DATA at a directory that has "
    f"reddit/{COLLECTIONS['college']}.gz"
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Token ids of the training, validation and test part; `vocabulary[id]` is the word."""

    name: str
    vocabulary: tuple[str, ...]
    train: Tokens
    valid: Tokens
    test: Tokens
    users: Users = ()

    @property
    def words(self) -> int:
        """The size of the vocabulary, `<eos>` and `<unk>` included."""
        return len(self.vocabulary)

    @property
    def eos(self) -> int:
        """The id of `<eos>`."""
        return self.vocabulary.index(EOS)


def load(
    name: str,
    *,
    words: int | None = None,
    vocabulary_file: Path | None = None,
    cased: bool = False,
    collection: Collection = "college",
    users: int = 100,
) -> Corpus:
    """The named corpus; `cased` concerns WikiText-2, `collection` and `users` Reddit.

    Vocabulary: that of a file (a word a line), else the commonest `words` of the training part, `<eos>` and `<unk>`
    among them. Default: every word (PTB 10,000; WikiText-2 lower-cased 28,911 and `<eos>`, cased 33,278), Reddit
    10,000. Words outside it become `<unk>`.
    """
    if name not in CORPORA:
        raise DataError(f"unknown corpus {name!r}; choose one of {', '.join(CORPORA)}")
    authors: Users = ()
    if name == "reddit":
        parts, authors = read_reddit(collection, users)
        words = 10_000 if words is None and vocabulary_file is None else words
    else:
        parts = read_ptb() if name == "ptb" else read_wikitext2(cased)
    if vocabulary_file is not None:
        vocabulary, where = read_vocabulary(vocabulary_file, words), f"{name} with {vocabulary_file}"
    else:
        vocabulary, where = build_vocabulary(parts["train"], words, name), name
    train, valid, test = (encode(parts[part], vocabulary, where) for part in PARTS)
    return Corpus(name, vocabulary, train, valid, test, authors)


def read_ptb() -> Parts:
    """Penn Treebank as preprocessed by Mikolov: 929,589 / 73,760 / 82,430 tokens."""
    return {part: _lines(read_file("ptb", f"ptb.{part}.txt").decode()) for part in PARTS}


def read_wikitext2(cased: bool = False) -> Parts:
    """WikiText-2 (Merity et al. 2017), its token files: 2,088,628 / 217,646 / 245,569 tokens.

    Lower-cased unless told otherwise: the 75.3 MB of the paper's model are 28,911 or 28,912 words, not 33,278.
    """
    texts = {part: read_file("wikitext2", f"wiki.{part}.tokens").decode() for part in PARTS}
    return {part: _lines(content if cased else content.lower()) for part, content in texts.items()}


def read_reddit(collection: Collection = "college", users: int = 100) -> tuple[Parts, Users]:
    """Comments of the `users` busiest Reddit users of a collection; each user is a client.

    This is not LEAF's Reddit file, which is not public: "college" is comments of eight university subreddits to 2021
    (emorynlp/reddit-college), "pushshift" the site's comments of December 2005 to March 2006; both were tokenised with
    LEAF's steps. Of each user the oldest comments train, the next tenth validates, the latest tenth tests. A comment
    that occurs twice counts where it comes first, so no text of one part is in another.
    """
    if collection not in COLLECTIONS:
        raise DataError(f"reddit: unknown collection {collection!r}; choose one of {', '.join(COLLECTIONS)}")
    try:
        content = read_file("reddit", COLLECTIONS[collection]).decode()
    except DataError as error:
        raise DataError(f"{error} ({NO_SOURCE.replace(COLLECTIONS['college'], COLLECTIONS[collection])})") from error
    people = [json.loads(line) for line in content.split("\n") if line]
    if not 1 <= users <= len(people):
        raise DataError(f"reddit: {users} users; the {collection} collection has {len(people)}: choose 1 to as many")
    parts: Parts = {part: [] for part in PARTS}
    shares, seen = [], set[str]()
    for person in people[:users]:
        comments = dict.fromkeys(" ".join(comment.split()) for comment in person["texts"])
        own = [comment for comment in comments if comment and comment not in seen]
        seen.update(own)
        held, before = max(1, len(own) // 10), len(parts["train"])
        if len(own) < 3:
            raise DataError(f"reddit: user {person['user']} has {len(own)} comments of their own; 3 parts need 3")
        cuts = {"train": own[: -2 * held], "valid": own[-2 * held : -held], "test": own[-held:]}
        for part, cut in cuts.items():
            parts[part] += _lines("\n".join(cut))
        shares.append((str(person["user"]), len(parts["train"]) - before))
    return parts, tuple(shares)


def build_vocabulary(train: Sequence[str], words: int | None, where: str) -> tuple[str, ...]:
    """The commonest words, commonest first; None: all there are, and `<unk>` only if it occurs."""
    counts = Counter(train)
    if words is not None:
        kept = sorted(counts.keys() - {EOS, UNK}, key=lambda word: (-counts[word], word))
        if not 3 <= words <= len(kept) + 2:
            raise DataError(f"{where}: a vocabulary of {words} words; with <eos> and <unk> choose 3 to {len(kept) + 2}")
        counts[UNK] += sum(counts.pop(word) for word in kept[words - 2 :])
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def read_vocabulary(path: Path, words: int | None = None) -> tuple[str, ...]:
    """A vocabulary from a text file, one word a line, ids in the order of the lines."""
    try:
        vocabulary = tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, ValueError) as error:
        raise DataError(f"vocabulary {path} cannot be read: {error}") from error
    bad = [word for word, n in Counter(vocabulary).items() if n > 1 or word.split() != [word]]
    problems = [f"line {vocabulary.index(word) + 1}, {word!r}, is not one word or comes twice" for word in bad[:1]]
    problems += [] if EOS in vocabulary else [f"{EOS} is missing"]
    problems += [] if words in (None, len(vocabulary)) else [f"it has {len(vocabulary)} words, not {words}"]
    if problems:
        raise DataError(f"vocabulary {path} does not fit: {'; '.join(problems)}")
    return vocabulary


def encode(tokens: Sequence[str], vocabulary: Sequence[str], where: str) -> Tokens:
    """The ids of tokens; words outside the vocabulary are `<unk>`, and refused where it has none."""
    ids = {word: i for i, word in enumerate(vocabulary)}
    unknown = ids.get(UNK, -1)
    encoded = np.fromiter((ids.get(token, unknown) for token in tokens), np.int32, count=len(tokens))
    if encoded.min(initial=0) < 0:
        word = tokens[int(encoded.argmin())]
        raise DataError(f"{where}: {word!r} is not among the {len(ids)} words of the vocabulary, which has no {UNK}")
    return encoded


def _lines(content: str) -> list[str]:
    """The tokens of lines, each line closed by `<eos>`."""
    return [*content.removesuffix("\n").replace("\n", f" {EOS} ").split(), EOS]
