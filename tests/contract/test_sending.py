"""What every name must keep on its way through the messages: real bytes change nothing and cost what was counted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbiad import wire
from fedbiad.cohort import Cohort
from fedbiad.compressors import COMPRESSORS
from fedbiad.compressors import PAPER as PAPER_COMPRESSORS
from fedbiad.errors import RunError
from fedbiad.experiment import Experiment, build
from fedbiad.messages import ReplyMessage, Rows
from fedbiad.methods import METHODS
from fedbiad.methods import PAPER as PAPER_METHODS
from fedbiad.rows import Layout
from fedbiad.sending import flatten, segments, unflatten
from fedbiad.server import select_clients
from running import small_plan

NAMES = [
    *METHODS, *(f"{name}:paper" for name in PAPER_METHODS),
    *COMPRESSORS, *(f"{name}:paper" for name in PAPER_COMPRESSORS),
    *(f"{method}+{compressor}"
      for method in ("feddrop", "afd", "fjord", "heterofl", "fedbiad-letter", "fedbiad", "focus")
      for compressor in COMPRESSORS),
]  # fmt: skip
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def experiment(name: str, **engine: Any) -> Experiment:
    return build(small_plan(name, engine=engine))


def rounds(experiment: Experiment) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """The records without times, and the last model."""
    records, model = [], {}
    for record, outcome in experiment.run(experiment.initial()):
        del record["seconds"]
        records.append(record)
        model = {name: value.numpy().tobytes() for name, value in outcome.u.items()}
    return records, model


def states(experiment: Experiment) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in experiment.transport.store.dump().items()}


@each_name
def test_real_bytes_change_nothing(name: str) -> None:
    """Every message through encode and decode: model, records (all counts) and states are the same bit for bit."""
    skipped, wired = experiment(name), experiment(name, wire=True)
    assert rounds(skipped) == rounds(wired)
    assert states(skipped) == states(wired)


@each_name
def test_counts_have_their_names_and_their_order(name: str) -> None:
    record = rounds(experiment(name))[0][-1]
    for way in ("upload", "download"):
        assert set(record[way]) == {"paper", "encoded", "transport"}
        assert record[way]["transport"] is None  # no network engine
        assert record[f"total_{way}"]["encoded"] >= record[way]["encoded"] > 0
    whole = experiment("fedavg").transport.training.channel.layout.num_weights * 4
    assert record["download"]["paper"] <= whole * record["clients"]
    if not name.startswith(("fedavg", "fedbiad-letter")):  # every other name saves something
        saved = (record["upload"]["paper"], record["download"]["paper"])
        assert min(saved) < whole * record["clients"]


@pytest.mark.parametrize("name", ["feddrop", "afd", "fedmp", "fjord", "heterofl"])
def test_patterns_of_the_server_shrink_the_download(name: str) -> None:
    record = rounds(experiment(name))[0][-1]
    fedavg = rounds(experiment("fedavg"))[0][-1]
    for count in ("paper", "encoded"):
        assert record["download"][count] < fedavg["download"][count]
    assert rounds(experiment("fedbiad"))[0][-1]["download"] == fedavg["download"]


def test_what_was_dropped_is_not_sent_down() -> None:
    """A client that was not assigned a row receives zeros for it, and never looks at them."""
    feddrop = experiment("feddrop", wire=True)
    server, transport = feddrop.server, feddrop.transport
    cohort = Cohort(server.seed, 1, (0, 1, 2))
    u = feddrop.initial()
    assigned = server.method.assign(server.layout, cohort, {}, u)
    assert assigned is not None
    received, _ = transport.training.channel.download(u, Cohort(server.seed, 1, (0, 1, 2), assigned))
    for i in range(3):
        held = torch.from_numpy(assigned[i])
        assert torch.equal(received["layer1.weight"][i][held], u["layer1.weight"][held])
        assert not received["layer1.weight"][i][~held].any()
        assert torch.equal(received["layer2.bias"][i], u["layer2.bias"])


def test_residuals_of_dropped_rows_stay() -> None:
    """STC on random sub-models: what a client does not send now it has not forgotten."""
    stc = experiment("feddrop+stc")
    layout = stc.transport.training.channel.layout
    before = _residuals(stc)
    for _, outcome in stc.run(stc.initial()):
        after = _residuals(stc)
        assigned = stc.server.method.assign(layout, _all(stc, outcome.round), {}, stc.initial())
        assert assigned is not None
        for client in range(12):
            kept = layout.kept_entries(assigned[client])
            assert np.array_equal(before[client][~kept], after[client][~kept])
        before = after
    assert np.abs(before).sum() > 0


def _residuals(experiment: Experiment) -> list[npt.NDArray[np.generic]]:
    """Of every client; before its first round it remembers nothing."""
    remembered = experiment.transport.store.lend(range(12)).remembered
    nothing = np.zeros(experiment.transport.training.channel.layout.num_weights, dtype=np.float32)
    return [remembered.get(client, {"residual": nothing})["residual"] for client in range(12)]


def _all(experiment: Experiment, round_: int) -> Cohort:
    return Cohort(experiment.server.seed, round_, tuple(range(12)))


def test_flat_and_back() -> None:
    fedavg = experiment("fedavg")
    layout, u = fedavg.transport.training.channel.layout, fedavg.initial()
    again = unflatten(layout, flatten(layout, u)[None])
    assert all(torch.equal(again[name][0], u[name]) for name in u)


def test_segments_tile_the_kept_entries() -> None:
    layout = experiment("feddrop").transport.training.channel.layout
    pattern = layout.all_rows(1)[0]
    pattern[:5] = False
    found = segments(layout, pattern)
    kept = layout.kept_entries(pattern)
    assert [part.name for part in found] == list(layout.shapes)
    assert found[0].entries.start == 0
    assert all(one.entries.stop == two.entries.start for one, two in pairwise(found))
    assert found[-1].entries.stop == kept.sum() == layout.kept_weights(pattern[None])[0]
    assert [part.dims for part in found] == [2, 1, 2, 1]


@pytest.mark.parametrize("name", ["fedavg", "fedbiad+dgc", "feddrop+stc"])
def test_a_reply_damaged_on_the_way_is_left_out_with_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's bytes are damaged in every round: it is named, keeps its memory, and the rounds go on."""
    true_encode, victim = wire.encode_reply, 3

    def damaged(layout: Layout, message: ReplyMessage, assigned: Rows | None = None) -> bytes:
        data = bytearray(true_encode(layout, message, assigned))
        if message.client == victim:
            data[len(data) // 2] ^= 4
        return bytes(data)

    monkeypatch.setattr(wire, "encode_reply", damaged)
    run = experiment(name, wire=True)
    hit = 0
    for record, _ in run.run(run.initial()):
        chosen = select_clients(run.seed, record["round"], 12, 4)
        hit += victim in chosen
        assert record["failed"] == ([victim] if victim in chosen else [])
        assert record["clients"] == 4 - len(record["failed"])
        if record["failed"]:
            assert "checksum" in record["reasons"][0]
    assert hit > 0
    assert victim not in run.transport.store.dump().get("clients", np.array([]))


def test_a_client_that_keeps_nothing_cannot_compress() -> None:
    compressor = COMPRESSORS["stc"]
    with pytest.raises(RunError, match="keeps no entry at all"):
        compressor.compress(
            np.zeros(0, np.float32), np.zeros(0, np.int64), [], compressor.init_client(4), 7, np.random.default_rng(0)
        )
