"""Which runs a table consists of: its rows, and how each data set is searched and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedbiad.advise import BUDGETS


@dataclass(frozen=True)
class Variant:
    """A row of a table: a method's name and what else is changed in the training, or in the plan."""

    method: str
    training: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """How a data set is reproduced: what is changed in its plan, and the grid every method is searched over."""

    changes: dict[str, str]
    rates: tuple[float, ...]
    plan: str | None = None
    """The plan that is changed, if it is not called like the data set."""
    server_steps: tuple[float, ...] = (1.0,)
    search_rounds: int = 20
    seeds: tuple[int, ...] = (0, 1, 2)
    judged_by: Literal["accuracy", "loss"] = "accuracy"
    """What a search looks at: mean accuracy of its last five rounds, or the loss after the last."""
    timing_rounds: int = 7
    """Rounds whose median length is told, run with nothing beside them; 0: no times are told."""

    @property
    def grid(self) -> list[tuple[float, float]]:
        """Learning rate and server step of every run of a search."""
        return [(rate, step) for rate in self.rates for step in self.server_steps]


IMAGES = Setting({"data.image_size": "32"}, rates=(0.03, 0.06, 0.12, 0.24))
"""The upload sizes printed for the image models imply 32 x 32 inputs."""
LANGUAGE = Setting({}, rates=(10.0, 20.0), server_steps=(1.0, 2.0), search_rounds=10, seeds=(0,),
                   judged_by="loss", timing_rounds=3)  # fmt: skip
"""After so few rounds the likeliest three words are the same everywhere: the loss tells more than the accuracy."""
SETTINGS = {"mnist": IMAGES, "fmnist": IMAGES, "ptb": LANGUAGE, "wikitext2": LANGUAGE, "reddit": LANGUAGE}

HEAVY = Setting(
    {"data.vocabulary": "2000", "model.hidden": "[128]", "model.embedding": "128", "training.batch": "20",
     "training.iterations": "116", "rounds": "20", "evaluate_every": "2"},
    rates=(10.0, 20.0), server_steps=(1.0, 2.0), search_rounds=3, seeds=(0,), judged_by="loss", timing_rounds=3,
)  # fmt: skip
"""Five epochs of a client's 9,300 tokens a round, on a smaller model: 2,000 words, width 128."""

CYCLIC, TEN = {"data.partition": "cyclic"}, {"training.selected": "10"}


def _frontier(changes: dict[str, str]) -> Setting:
    return Setting(changes, rates=(0.03, 0.06, 0.12), plan="fmnist", server_steps=(1.0, 2.0), timing_rounds=0)


WORDS_FRONTIER = replace(LANGUAGE, rates=(20.0,), timing_rounds=0)
"""The searches of Table 1 on PTB, WikiText-2 and Reddit all chose this rate, so the server's step alone is searched."""
SPECIAL = {
    ("heavy", "ptb"): HEAVY,
    ("frontier", "fmnist"): _frontier({}),
    ("frontier", "fmnist-cyclic"): _frontier(CYCLIC),
    ("frontier", "fmnist-ten"): _frontier(TEN),
    ("frontier", "fmnist-cyclic-ten"): _frontier({**CYCLIC, **TEN}),
    ("frontier", "ptb"): WORDS_FRONTIER,
    ("frontier", "reddit"): WORDS_FRONTIER,
}
"""Settings of a table that are not those of its data set."""

DROPOUT = 0.2
"""Of FedAvg with ordinary dropout inside local training."""


LADDER = tuple(budget for budget in BUDGETS if budget not in (0.02, 0.001))
"""Budgets of the frontier."""


def _evidence(name: str, also: str = "", budgets: Sequence[float] = LADDER, **training: Any) -> dict[str, Variant]:
    """A method with evidence coding, a row for each budget; `also` names what else is changed in the training."""
    return {
        f"{name}{also}, evidence {100 * budget:g} %": Variant(
            f"{name.lower()}+evidence", training, {"compressors": {"evidence": {"budget": budget}}}
        )
        for budget in budgets
    }


TABLES: dict[str, dict[str, Variant]] = {
    "table1": {
        "FedAvg": Variant("fedavg"),
        "FedDrop": Variant("feddrop"),
        "AFD": Variant("afd:paper"),
        "FedMP": Variant("fedmp:paper"),
        "FjORD": Variant("fjord:paper"),
        "HeteroFL": Variant("heterofl:paper"),
        "FedBIAD": Variant("fedbiad"),
    },
    "table2": {
        "FedPAQ": Variant("fedpaq:paper"),
        "SignSGD": Variant("signsgd:paper"),
        "STC": Variant("stc:paper"),
        "DGC": Variant("dgc:paper"),
        "AFD+DGC": Variant("afd:paper+dgc:paper"),
        "Fjord+DGC": Variant("fjord:paper+dgc:paper"),
        "FedBIAD+DGC": Variant("fedbiad+dgc:paper"),
    },
    "heavy": {
        "FedAvg": Variant("fedavg"),
        "FedAvg, dropout 0.2": Variant("fedavg", {"dropout": 0.2}),
        "FedAvg, dropout 0.5": Variant("fedavg", {"dropout": 0.5}),
        "FedDrop": Variant("feddrop"),
        "FedBIAD p=.2": Variant("fedbiad", plan={"dropout_rate": 0.2}),
        "FedBIAD p=.5": Variant("fedbiad"),
    },
    "readings": {
        "FedAvg": Variant("fedavg"),
        "FedBIAD": Variant("fedbiad"),
        "FedBIAD p=.2": Variant("fedbiad", plan={"dropout_rate": 0.2}),
        "FedBIAD units": Variant("fedbiad", plan={"methods": {"fedbiad": {"rows": "lstm-units"}}}),
        # over all local data the trend would look at 9,300 tokens an iteration, the training at 80
        "FedBIAD letter, batch trend": Variant(
            "fedbiad-letter", plan={"methods": {"fedbiad-letter": {"trend": "batch"}}}
        ),
    },
    "frontier": {
        "FedAvg": Variant("fedavg"),
        "FedDrop": Variant("feddrop"),
        "FedBIAD": Variant("fedbiad"),
        # its own noise is 10^-13 here, and drawn for every weight at every step
        "FedBIAD letter, no noise": Variant("fedbiad-letter", plan={"methods": {"fedbiad-letter": {"noise": 0.0}}}),
        "FedMP, original": Variant("fedmp"),
        **{f"FedPAQ {bits} bits": Variant("fedpaq", plan={"compressors": {"fedpaq": {"bits": bits}}})
           for bits in (8, 4, 2)},
        "SignSGD": Variant("signsgd"),
        "STC": Variant("stc"),
        "DGC": Variant("dgc"),
        "FedBIAD+DGC": Variant("fedbiad+dgc"),
        **_evidence("FedAvg"),
        **_evidence("FedDrop", budgets=(0.005, 0.002)),
        **_evidence("FedBIAD", budgets=(0.005, 0.002, 0.0005)),
    },
}  # fmt: skip
"""The methods of each table under the paper's names. `heavy`: heavy local training, which it only remarks on;
`readings`: FedBIAD read in other ways, and to the letter; `frontier`: accuracy against encoded bytes."""

_WITH_DROPOUT = {"FedAvg, dropout": Variant("fedavg", {"dropout": DROPOUT})}
_WORDS = {
    # a share of the rate that suits images (0.02 of 0.12) would move every weight by 0.4 at a rate of 20
    "SignSGD, step 0.0024": Variant("signsgd", plan={"compressors": {"signsgd": {"step_share": 0.00012}}}),
    "FedAvg, words": Variant("fedavg", {"word_mean": "present"}),
    **_evidence("FedAvg", ", words", word_mean="present"),
    **_evidence("FedAvg", ", words, Gaussian", word_mean="present", absent_words="gaussian"),
    **_evidence("FedBIAD", ", words", word_mean="present"),
}
_CODED = {
    label: row for name in ("FedAvg", "FedDrop", "FedBIAD") for label, row in _evidence(name, budgets=(0.005,)).items()
}
EXTRA: dict[tuple[str, str], dict[str, Variant]] = {
    ("table2", "mnist"): _CODED,
    ("table2", "fmnist"): _CODED,
    ("table1", "ptb"): _WITH_DROPOUT,
    ("table1", "reddit"): _WITH_DROPOUT,
    ("frontier", "ptb"): _WORDS,
    ("frontier", "reddit"): _WORDS,
}
"""Rows beyond the paper's: evidence coding beside other compressors; without ordinary dropout a comparison of
language models is not fair; `words`: the mean of a word is over the clients that have it, which is worth something by
itself and so is shown without coding, too; `Gaussian`: words a client lacks are one term of its softmax."""
_LANGUAGE_FRONTIER = (
    "FedAvg",
    "FedAvg, words",
    "FedAvg, words, evidence 0.2 %",
    *(f"FedAvg, words, Gaussian, evidence {share} %" for share in ("1", "0.2", "0.05")),
    "FedBIAD",
    "FedBIAD, words, evidence 0.2 %",
    "DGC",
    "STC",
    "FedDrop",
    "FedPAQ 2 bits",
    "FedAvg, evidence 0.05 %",
    "SignSGD, step 0.0024",
    "FedBIAD+DGC",
    "FedMP, original",
    "FedPAQ 4 bits",
)
_SHORT_FRONTIER = (
    "FedAvg",
    "FedDrop",
    "FedBIAD",
    "FedPAQ 2 bits",
    "STC",
    "DGC",
    *(f"FedAvg, evidence {share} %" for share in ("5", "1", "0.5", "0.2", "0.05")),
    "FedBIAD, evidence 0.5 %",
)
ONLY = {
    ("table1", "wikitext2"): ("FedAvg", "FedBIAD"),
    ("frontier", "fmnist-cyclic"): _SHORT_FRONTIER,
    ("frontier", "fmnist-ten"): _SHORT_FRONTIER,
    ("frontier", "fmnist-cyclic-ten"): _SHORT_FRONTIER,
    ("frontier", "ptb"): _LANGUAGE_FRONTIER,
    ("frontier", "reddit"): ("FedAvg", "FedAvg, words", "FedAvg, words, Gaussian, evidence 0.2 %"),
}
"""Tables of which only some rows are run."""

DATA = {
    "table1": tuple(SETTINGS),
    "table2": ("mnist", "fmnist"),
    "heavy": ("ptb",),
    "readings": ("ptb",),
    "frontier": tuple(data for table, data in SPECIAL if table == "frontier"),
}
"""On which data sets there is which table."""

NAMES = {
    "mnist": "MNIST", "fmnist": "Fashion-MNIST", "fmnist-cyclic": "Fashion-MNIST, cyclic partition",
    "fmnist-ten": "Fashion-MNIST, 10 clients a round",
    "fmnist-cyclic-ten": "Fashion-MNIST, cyclic partition, 10 clients a round",
    "ptb": "PTB", "wikitext2": "WikiText-2", "reddit": "Reddit",
}  # fmt: skip
"""Data sets in words."""
