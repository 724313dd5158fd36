"""Plans: built in, from TOML and from the command line; every problem at once, each with what was probably meant."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedbiad import plan as plans
from fedbiad.compressors import COMPRESSORS
from fedbiad.errors import PlanError
from fedbiad.loss_trend import checks
from fedbiad.methods import METHODS, FedAvg, FedBIAD, FedDrop
from fedbiad.plan import Plan, from_dict, load, to_toml

IMAGES = ("digits", "fmnist", "mnist")
BUILT_IN = (*IMAGES, "ptb", "reddit", "wikitext2")

READINGS = {
    "aggregation": ("holders", "zeros"),
    "scaling": ("inverse", "none"),
    "rows": ("units", "weight-rows"),
    "trend": ("batch", "local"),
    "resample": ("swap", "anew"),
    "upload": ("longest", "final"),
    "score": ("evidence", "holds"),
    "stage_two": ("sample", "above"),
    "noise": ("posterior", "posterior"),
    "scope": ("group", "global"),
}
"""Options of `fedbiad` and of `fedbiad-letter`."""

OTHER: dict[str, Any] = {
    **{option: pair[1] for option, pair in READINGS.items() if option != "noise"},
    "noise": 0.25, "dropout_rate": 0.3, "interval": 7, "stage_boundary": 0, "swap_share": 1.0,
    "weighting": "clients",
}  # fmt: skip
"""For every option of FedBIAD a value that is not its default."""


def raw(**changes: Any) -> dict[str, Any]:
    """The least a plan must say; keys with `__` go into tables."""
    found: dict[str, Any] = {"data": {"name": "digits", "clients": 10}, "training": {"learning_rate": 0.1}}
    for key, value in changes.items():
        *tables, last = key.split("__")
        table = found
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return found


def problems(**changes: Any) -> list[str]:
    """What is found wrong with a plan."""
    with pytest.raises(PlanError) as caught:
        from_dict(raw(**changes))
    return caught.value.problems


def again(plan: Plan) -> Plan:
    """Through TOML and back."""
    return from_dict(tomllib.loads(to_toml(plan)))


class TestReading:
    def test_built_in_plans_are_named(self) -> None:
        assert plans.builtin_names() == list(BUILT_IN)

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_built_in_plans_load_and_have_no_warnings(self, name: str) -> None:
        plan = load(name)
        assert plan.name == plan.data.name == name
        assert plans.warnings(plan) == []

    def test_mnist_is_the_protocol_of_the_paper(self) -> None:
        plan = load("mnist")
        assert (plan.data.clients, plan.selected_clients, plan.rounds) == (1000, 100, 60)
        assert (plan.model.hidden, plan.dropout_rate, plan.data.labels_per_client) == ((128,), 0.2, 5)

    def test_a_file_gives_its_name_to_the_plan(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text('[data]\nname = "digits"\nclients = 3\n[training]\nlearning_rate = 0.5\n')
        assert load(path) == from_dict({**raw(data__clients=3, training__learning_rate=0.5), "name": "mine"})

    def test_an_unknown_plan_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(PlanError, match=r"did you mean 'fmnist'\?.*digits, fmnist, mnist"):
            load("fmnis")

    @pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe"])
    def test_what_is_not_toml_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "broken.toml"
        path.write_bytes(content)
        with pytest.raises(PlanError, match=r"broken\.toml: 1 problem"):
            load(path)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="cannot be read"):
            load(tmp_path / "none.toml")


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
rate = st.floats(min_value=0, max_value=1, exclude_max=True)
count = st.integers(1, 2**40)
# names beyond U+FFFF and the control character U+007F have a test of their own
names = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\x7f"))

NAMES = [*METHODS, *COMPRESSORS, "fedbiad+dgc", "fjord:paper+stc:paper", "afd:original+half"]

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "aggregation": st.sampled_from(["holders", "zeros", "old"]),
    "dropout_rate": rate,
    "rows": st.sampled_from(["units", "weight-rows"]),
    "scope": st.sampled_from(["group", "global"]),
    "scaling": st.sampled_from(["inverse", "none"]),
    "interval": count,
    "stage_boundary": st.integers(0, 1000),
    "trend": st.sampled_from(["batch", "local"]),
    "resample": st.sampled_from(["swap", "anew"]),
    "swap_share": st.floats(0, 1, exclude_min=True),
    "upload": st.sampled_from(["longest", "final"]),
    "score": st.sampled_from(["evidence", "holds"]),
    "stage_two": st.sampled_from(["sample", "top", "above"]),
    "noise": st.just("posterior") | st.floats(0, 1e300),
    "weighting": st.sampled_from(["samples", "clients"]),
    "model": st.sampled_from(["single", "multi"]),
    "unscored": st.sampled_from(["last", "mean"]),
    "chosen_by": st.sampled_from(["server", "client"]),
    "arms": st.integers(2, 100),
    "compute_seconds": st.floats(0, 1e300),
    "widths": st.just("dropout") | st.lists(st.floats(0.01, 1), min_size=1, max_size=3, unique=True).map(sorted),
    "rates": st.just("dropout") | st.lists(st.floats(0.01, 1), min_size=1, max_size=3, unique=True).map(sorted),
    "wide_share": st.floats(0.1, 0.9),
    "distillation": st.booleans(),
    "mode": st.sampled_from(["fix", "dynamic"]),
    "scaler": st.booleans(),
    "masked_logits": st.booleans(),
    "full_steps": count,
}
OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {"focus": {"scaling": st.just("none")}}
"""Of methods that take less than others do."""


def options(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """A non-empty choice of a method's own options."""
    known = {**OPTIONS, **OWN.get(name, {})}
    own = {field.name: known[field.name] for field in dataclasses.fields(METHODS[name])}
    return st.fixed_dictionaries({}, optional=own).filter(bool)


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid plan, as plain dictionaries."""
    clients = draw(st.integers(1, 10**6))
    data: dict[str, Any] = {"name": draw(st.sampled_from(IMAGES)), "clients": clients}
    data |= draw(st.fixed_dictionaries({}, optional={
        "partition": st.sampled_from(["labels", "cyclic", "dirichlet", "iid"]), "labels_per_client": st.integers(1, 10),
        "concentration": positive,
    }))  # fmt: skip
    model = draw(
        st.fixed_dictionaries({"name": st.just("mlp"), "hidden": st.lists(count, min_size=1, max_size=4)})
        | st.fixed_dictionaries({"name": st.just("cnn"), "filters": st.lists(count, min_size=2, max_size=2)})
    )
    training = {"learning_rate": draw(positive)} | draw(st.fixed_dictionaries({}, optional={
        "iterations": count, "batch": count, "server_step": positive, "dropout": rate,
        "selected": st.integers(1, clients) | st.floats(0, 1, exclude_min=True),
        "weight_decay": st.floats(0, allow_infinity=False, allow_nan=False),
    }))  # fmt: skip
    engine = st.fixed_dictionaries({}, optional={
        "block": count, "form": st.sampled_from(["auto", "masked", "compact"]), "checkpoint_every": count,
        "threads": count, "wire": st.booleans(),
    })  # fmt: skip
    top = draw(st.fixed_dictionaries({}, optional={
        "name": names, "method": st.sampled_from(NAMES), "rounds": count, "seed": st.integers(0, 2**60),
        "dropout_rate": rate, "evaluate_on": st.sampled_from(["test", "validation"]), "evaluate_every": count,
        "engine": engine, "target_accuracy": st.floats(0, 1, exclude_min=True), "watch": st.integers(0, clients - 1),
        "network": st.fixed_dictionaries({}, optional={
            "uplink": positive, "slow_share": rate, "count": st.sampled_from(["encoded", "paper"]),
        }),
        "methods": st.fixed_dictionaries({}, optional={name: options(name) for name in METHODS}),
    }))  # fmt: skip
    return {**top, "data": data, "model": model, "training": training}


class TestRoundTrip:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_built_in(self, name: str) -> None:
        assert again(load(name)) == load(name)

    @hypothesis_settings(deadline=None, max_examples=100)
    @given(valid())
    def test_any_valid_plan(self, found: dict[str, Any]) -> None:
        plan = from_dict(found)
        assert again(plan) == plan
        assert again(plan).resolved_method() == plan.resolved_method()
        assert 1 <= plan.selected_clients <= plan.data.clients

    @pytest.mark.parametrize("name", ['"quoted" \\ and\nbroken\tup', "é ü ß 数", "\x7f", "\N{GRINNING FACE}"])
    def test_names_with_any_character(self, name: str) -> None:
        assert again(from_dict(raw(name=name))).name == name

    def test_an_empty_table_of_options(self) -> None:
        plan = from_dict(raw(methods={"fedbiad": {}}))
        assert again(plan) == plan

    def test_share_and_count_stay_apart(self) -> None:
        for selected in (1, 1.0):
            assert type(again(from_dict(raw(training__selected=selected))).training.selected) is type(selected)


class TestProblems:
    def test_all_at_once(self) -> None:
        found = problems(
            dropout_rate=1.0, rounds="many", roundz=3, method="fedbiat", data__image_size="big", training__batch=0,
            training__selected=11, methods={"fedbiad": {"interval": 0, "intervall": 3}, "feddrop": {"scope": "rows"}},
        )  # fmt: skip
        wanted = ("dropout_rate", "rounds:", "roundz", "'fedbiat'", "data.image_size", "training.batch",
                  "training.selected", "methods.fedbiad.interval:", "methods.fedbiad.intervall",
                  "methods.feddrop.scope")  # fmt: skip
        assert [key for key in wanted if not any(key in line for line in found)] == []
        assert len(found) == len(wanted)

    def test_the_message_counts_and_lists_them_and_says_where(self) -> None:
        with pytest.raises(PlanError) as caught:
            from_dict(raw(rounds=0, seed=-1), "mine.toml")
        first, *others = str(caught.value).split("\n")
        assert first == "mine.toml: 2 problems"
        assert others == [f"  - {problem}" for problem in caught.value.problems]

    @pytest.mark.parametrize("p", [1.0, 1.5, -0.1, 1, math.nan, math.inf, -math.inf])
    def test_dropout_rate_outside(self, p: float) -> None:
        (line,) = problems(dropout_rate=p)
        assert line.startswith("dropout_rate: input should be ")

    @pytest.mark.parametrize("p", [0, 0.0, 0.999])
    def test_dropout_rate_inside(self, p: float) -> None:
        assert from_dict(raw(dropout_rate=p)).dropout_rate == p

    @pytest.mark.parametrize("tau", [0, -3])
    def test_interval_below_one(self, tau: int) -> None:
        (line,) = problems(methods__fedbiad__interval=tau)
        assert line == f"methods.fedbiad.interval: input should be greater than or equal to 1, not {tau}"

    def test_more_clients_a_round_than_exist(self) -> None:
        (line,) = problems(training__selected=11)
        assert line == "training.selected = 11 clients a round, but data.clients = 10 exist"
        assert from_dict(raw(training__selected=10)).selected_clients == 10

    @pytest.mark.parametrize(
        ("wrong", "meant"),
        [
            ("roundz", "rounds"),
            ("training__lerning_rate", "training.learning_rate"),
            ("methods__fedbiad__intervall", "methods.fedbiad.interval"),
        ],
    )
    def test_an_unknown_key_is_answered_with_the_nearest(self, wrong: str, meant: str) -> None:
        assert problems(**{wrong: 1}) == [f"unknown key {wrong.replace('__', '.')}, did you mean {meant}?"]

    @pytest.mark.parametrize(
        ("wrong", "place"),
        [
            ("iterations", "training.iterations"),
            ("clients", "data.clients"),
            ("training__hidden", "model.hidden"),
            ("data__threads", "engine.threads"),
            ("training__rounds", "rounds"),
            ("data__seed", "seed"),
        ],
    )
    def test_a_key_in_the_wrong_table_is_told_where_it_belongs(self, wrong: str, place: str) -> None:
        assert problems(**{wrong: 1}) == [f"unknown key {wrong.replace('__', '.')}, did you mean {place}?"]

    def test_an_unknown_key_like_no_other_is_answered_with_all(self) -> None:
        (line,) = problems(data__zzz=1)
        assert line.startswith("unknown key data.zzz (valid: name, clients, ")

    def test_missing_keys_are_named(self) -> None:
        with pytest.raises(PlanError) as caught:
            from_dict({"data": {"name": "digits"}})
        assert sorted(caught.value.problems) == ["data.clients is missing", "training is missing"]

    @pytest.mark.parametrize(("method", "meant"), [("fedbiat", "fedbiad"), ("FedAvg", "fedavg"), ("drop", "feddrop")])
    def test_an_unknown_method_is_answered_with_the_nearest(self, method: str, meant: str) -> None:
        (line,) = problems(method=method)
        assert f"unknown method {method!r} (did you mean {meant!r}?); there are fedavg, " in line

    def test_options_of_an_unknown_method(self) -> None:
        (line,) = problems(methods__fedbiat__interval=3)
        assert "unknown method 'fedbiat' (did you mean 'fedbiad'?)" in line

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("rounds", "3"),
            ("rounds", 3.0),
            ("rounds", True),
            ("name", 3),
            ("training__learning_rate", "0.1"),
            ("model__hidden", 5),
            ("data", 3),
            ("methods", 3),
            ("evaluate_on", "train"),
            ("data__name", "imagenet"),
            ("methods__fedbiad__upload", "last"),
        ],
    )
    def test_a_wrong_type_or_choice(self, key: str, value: Any) -> None:
        (line,) = problems(**{key: value})
        assert line.startswith(f"{key.replace('__', '.')}: input should be ")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize(
        "key",
        ["training__learning_rate", "training__server_step", "training__weight_decay", "training__dropout",
         "training__selected", "data__concentration", "methods__fedbiad__swap_share", "methods__fedbiad__noise"],
    )  # fmt: skip
    def test_not_a_finite_number(self, key: str, value: float) -> None:
        assert all(line.startswith(key.replace("__", ".")) for line in problems(**{key: value}))

    def test_a_cnn_has_one_hidden_layer(self) -> None:
        (line,) = problems(model={"name": "cnn", "hidden": [8, 8]})
        assert line == "model.hidden: a cnn has one hidden size, not 2"

    def test_text_needs_an_lstm_and_a_vocabulary(self) -> None:
        line, dealt, missing = problems(data={"name": "ptb", "clients": 10})
        assert dealt == "data.partition = 'labels': ptb is dealt out by iid"
        assert line == "model.name = 'mlp' does not fit data.name = 'ptb': an lstm reads text, the others read images"
        assert missing == "data.vocabulary is missing: the number of words"
        (line,) = problems(model={"name": "lstm", "hidden": [8]})
        assert "an lstm reads text" in line

    def test_replace_checks_again(self) -> None:
        with pytest.raises(PlanError, match="rounds"):
            load("digits").replace(rounds=0)
        assert load("digits").replace(seed=4) == dataclasses.replace(load("digits"), seed=4)


class TestSettings:
    def test_toml_values_and_bare_strings(self) -> None:
        plan = load("digits", {
            "training.learning_rate": "0.05", "model.hidden": "[8, 9]", "method": "feddrop", "name": '"with quotes"',
            "methods.fedbiad.noise": "0.5", "methods.feddrop.scope": "global", "engine.form": "masked", "rounds": "7",
        })  # fmt: skip
        assert (plan.training.learning_rate, plan.model.hidden) == (0.05, (8, 9))
        assert (plan.method, plan.name) == ("feddrop", "with quotes")
        assert plan.methods["fedbiad"] == {"stage_boundary": 25, "noise": 0.5}
        assert (plan.methods["feddrop"], plan.engine.form, plan.rounds) == ({"scope": "global"}, "masked", 7)
        assert plan.training.batch == load("digits").training.batch

    def test_problems_name_the_key(self) -> None:
        with pytest.raises(PlanError) as caught:
            load("digits", {"training.batchh": "3", "rounds": "few"})
        assert sorted(caught.value.problems) == [
            'rounds: input should be a valid integer, not "few"',
            "unknown key training.batchh, did you mean training.batch?",
        ]

    def test_a_value_is_no_table(self) -> None:
        with pytest.raises(PlanError, match=r"rounds\.x: rounds is not a table"):
            load("digits", {"rounds.x": "3"})

    @pytest.mark.parametrize("value", ["2020-01-01", "12:30:00"])
    def test_a_date_is_a_wrong_type_like_any_other(self, value: str) -> None:
        with pytest.raises(PlanError, match="rounds"):
            load("digits", {"rounds": value})


class TestMethods:
    @pytest.mark.parametrize(("column", "name"), [(0, "fedbiad"), (1, "fedbiad-letter")])
    def test_presets_have_exactly_their_options(self, column: int, name: str) -> None:
        found = dataclasses.asdict(from_dict(raw(method=name)).resolved_method())
        assert {option: found[option] for option in READINGS} == {o: pair[column] for o, pair in READINGS.items()}

    def test_presets_share_every_other_option(self) -> None:
        default, letter = (dataclasses.asdict(METHODS[name]) for name in ("fedbiad", "fedbiad-letter"))
        differing = {option for option in default if default[option] != letter[option]}
        assert differing == set(READINGS) - {"noise"}
        assert {option: default[option] for option in default.keys() - READINGS.keys()} == {
            "dropout_rate": 0.5, "interval": 3, "stage_boundary": 55, "swap_share": 0.1, "weighting": "samples",
        }  # fmt: skip

    @pytest.mark.parametrize("option", OTHER)
    def test_every_option_can_be_set_singly(self, option: str) -> None:
        default = from_dict(raw()).resolved_method()
        changed = from_dict(raw(methods={"fedbiad": {option: OTHER[option]}})).resolved_method()
        assert changed == dataclasses.replace(default, **{option: OTHER[option]})
        assert changed != default

    def test_every_option_is_covered(self) -> None:
        assert set(OTHER) == {field.name for field in dataclasses.fields(FedBIAD)}

    def test_the_dropout_rate_is_the_plan_s_unless_the_method_has_its_own(self) -> None:
        plan = from_dict(raw(dropout_rate=0.2, methods={"feddrop": {"dropout_rate": 0.7}}))
        assert plan.resolved_method("fedbiad") == FedBIAD(dropout_rate=0.2)
        assert plan.resolved_method("feddrop") == FedDrop(dropout_rate=0.7)
        assert plan.resolved_method("fedavg") == FedAvg()

    def test_options_of_other_methods_do_not_matter(self) -> None:
        plan = from_dict(raw(method="fedbiad-letter", methods={"fedbiad": {"interval": 5}}))
        assert plan.resolved_method() == METHODS["fedbiad-letter"]


class TestSelected:
    @pytest.mark.parametrize(
        ("clients", "selected", "count"),
        [(10, 1, 1), (10, 1.0, 10), (10, 0.5, 5), (10, 0.39, 3), (10, 0.01, 1), (1000, 0.1, 100), (10, 0.3, 3),
         (100, 0.29, 29), (10, 7, 7)],
    )  # fmt: skip
    def test_as_share_and_as_count(self, clients: int, selected: float, count: int) -> None:
        assert from_dict(raw(data__clients=clients, training__selected=selected)).selected_clients == count

    @pytest.mark.parametrize("selected", [0, 0.0, -1, -0.5, 1.5])
    def test_neither(self, selected: float) -> None:
        assert all(line.startswith("training.selected: ") for line in problems(training__selected=selected))


class TestWarnings:
    @pytest.mark.parametrize("upload", ["longest", "final"])
    @pytest.mark.parametrize("tau", [1, 2, 3, 5])
    def test_they_follow_the_checks_of_the_loss_trend(self, tau: int, upload: str) -> None:
        for V in range(1, 4 * tau):
            plan = from_dict(raw(training__iterations=V, methods={"fedbiad": {"interval": tau, "upload": upload}}))
            found = " ".join(plans.warnings(plan))
            assert ("too short to ever check" in found) == (not checks(V, tau)), V
            assert ("the last iteration is a check" in found) == (upload == "final" and V - 1 in checks(V, tau)), V

    def test_too_short_says_how_long(self) -> None:
        (line,) = plans.warnings(from_dict(raw(training__iterations=6)))
        assert "V = 6" in line
        assert "use V >= 7 or a smaller interval" in line

    @pytest.mark.parametrize(("rounds", "never"), [(55, True), (56, False)])
    def test_stage_two_never_starts(self, rounds: int, never: bool) -> None:
        found = plans.warnings(from_dict(raw(rounds=rounds)))
        assert found == ([f"stage two never starts: rounds = {rounds}, stage_boundary = 55"] if never else [])

    @pytest.mark.parametrize(("iterations", "saves"), [(4, True), (3, False)])
    def test_focus_needs_iterations_after_the_full_ones(self, iterations: int, saves: bool) -> None:
        found = plans.warnings(from_dict(raw(method="focus", training__iterations=iterations)))
        assert found == ([] if saves else [
            "focus saves no computation: full_steps = 3 of V = 3 iterations leave none; use fewer full_steps"
        ])  # fmt: skip

    @pytest.mark.parametrize("method", ["fedavg", "feddrop"])
    def test_methods_without_checks_have_none(self, method: str) -> None:
        assert plans.warnings(from_dict(raw(method=method, rounds=1, training__iterations=1))) == []


def test_data_that_do_not_come_so_are_named_with_their_keys() -> None:
    with pytest.raises(PlanError) as caught:
        load(
            "mnist",
            {"data.labels_per_client": "11", "data.image_size": "30", "training.selected": "0", "model.name": "mpl"},
        )
    assert sorted(problem.split(",")[0].split(":")[0] for problem in caught.value.problems) == [
        "data.image_size = 30", "data.labels_per_client = 11", "model.name", "training.selected",
    ]  # fmt: skip
    for size in (28, 32):
        assert load("mnist", {"data.image_size": str(size)}).data.image_size == size


def test_one_client_a_round_is_asked_about() -> None:
    assert any("1.0 would be all" in text for text in plans.warnings(load("digits", {"training.selected": "1"})))
    assert not any("1.0 would be all" in text for text in plans.warnings(load("digits", {"training.selected": "1.0"})))
