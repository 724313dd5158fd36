"""Names of methods: parts, profiles, and what is wrong with a wrong one."""

from __future__ import annotations

import pytest

from fedbiad.compressors import COMPRESSORS, DGC, STC, SignSGD
from fedbiad.compressors import PAPER as PAPER_COMPRESSORS
from fedbiad.errors import PlanError
from fedbiad.methods import AFD, METHODS, PAPER, FedAvg, FedBIAD, FjORD
from fedbiad.names import Name, parse
from fedbiad.plan import Plan, from_dict


def plan(method: str, **tables: object) -> Plan:
    found = {"data": {"name": "digits", "clients": 10}, "training": {"learning_rate": 0.1}, "dropout_rate": 0.2}
    return from_dict({**found, "method": method, **tables})


def problems(method: str, **tables: object) -> list[str]:
    with pytest.raises(PlanError) as caught:
        plan(method, **tables)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fedbiad", Name("fedbiad")),
        ("fedbiad+dgc", Name("fedbiad", compressor="dgc")),
        ("dgc", Name("fedavg", compressor="dgc")),
        ("stc:paper", Name("fedavg", compressor="stc", compressor_profile="paper")),
        ("fjord:paper+stc", Name("fjord", "paper", "stc")),
        ("afd+signsgd:paper", Name("afd", "original", "signsgd", "paper")),
    ],
)
def test_parts(text: str, name: Name) -> None:
    assert parse(text) == (name, [])


def test_presets() -> None:
    assert plan("fedpaq").resolved() == (FedAvg(), COMPRESSORS["fedpaq"])
    assert plan("fedavg+fedpaq").resolved() == plan("fedpaq").resolved()
    assert plan("fedbiad+dgc").resolved() == (FedBIAD(dropout_rate=0.2), DGC())
    method, compressor = plan("fjord:paper+stc:paper").resolved()
    assert method == FjORD(widths="dropout", wide_share=1 / 3, dropout_rate=0.2)
    assert compressor == PAPER_COMPRESSORS["stc"] == STC(per="model")
    assert plan("fedbiad:paper").resolved() == plan("fedbiad").resolved()  # it has no other reading in the tables


@pytest.mark.parametrize("name", [*METHODS, *COMPRESSORS])
def test_the_default_profile_is_original(name: str) -> None:
    assert plan(name).resolved() == plan(f"{name}:original").resolved()


@pytest.mark.parametrize("name", [*PAPER, *PAPER_COMPRESSORS])
def test_profiles_differ_where_they_are_listed(name: str) -> None:
    assert plan(name).resolved() != plan(f"{name}:paper").resolved()


def test_options_reach_both_parts() -> None:
    found = plan("afd+dgc", methods={"afd": {"model": "multi"}}, compressors={"dgc": {"density": 0.01}})
    assert found.resolved() == (AFD(model="multi", dropout_rate=0.2), DGC(density=0.01))
    again = found.written_out()
    assert again.resolved() == found.resolved()
    assert set(again.methods) == {"afd"}
    assert set(again.compressors) == {"dgc"}
    assert again.compressors["dgc"]["momentum"] == 0.9


def test_a_profile_that_was_written_out_keeps_its_options() -> None:
    found = plan("signsgd:paper").written_out()
    assert found.compressors == {"signsgd": {"mode": "scaled", "step_share": 0.02, "per": "model"}}
    assert found.resolved()[1] == SignSGD(mode="scaled", per="model")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedbiad+dgc+stc", ("3 parts", "a method and one compressor")),
        ("fedbaid", ("unknown method", "did you mean 'fedbiad'", "or a compressor (dgc")),
        ("fedbiad+dgcc", ("unknown compressor", "did you mean 'dgc'")),
        ("dgc+stc", ("unknown method 'dgc'",)),
        ("fedbiad:papr", ("unknown profile 'papr'", "did you mean 'paper'", "original, paper")),
        ("fedbiad+dgc:letter", ("unknown profile 'letter'",)),
        ("fedbiad+", ("unknown compressor ''",)),
        ("", ("unknown method ''",)),
    ],
)
def test_wrong_names(name: str, words: tuple[str, ...]) -> None:
    found = "; ".join(problems(name))
    assert all(word in found for word in words), found


@pytest.mark.parametrize(
    ("compressor", "options", "words"),
    [
        ("dgc", {"density": 0}, "compressors.dgc.density"),
        ("stc", {"density": 1.5}, "compressors.stc.density"),
        ("fedpaq", {"bits": 9}, "compressors.fedpaq.bits"),
        ("fedpaq", {"bits": 1}, "compressors.fedpaq.bits"),
        ("dgc", {"momentum": 1.0}, "compressors.dgc.momentum"),
        ("dgc", {"densty": 0.1}, "did you mean compressors.dgc.density?"),
        ("dcg", {}, "did you mean 'dgc'"),
    ],
)
def test_wrong_options(compressor: str, options: dict[str, object], words: str) -> None:
    found = problems("fedavg", compressors={compressor: options})
    assert len(found) == 1
    assert words in found[0], found


def test_every_problem_at_once() -> None:
    found = problems("fedbiad:x+dgcc", methods={"afd": {"modl": 1}}, compressors={"stc": {"density": 0}})
    assert len(found) == 4, found
