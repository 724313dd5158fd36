"""A plan: everything that determines a run, from a TOML file or from code.

All problems of a plan are found at once; an unknown key is answered with the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedbiad.compressors import Compressor
from fedbiad.data import DATASETS
from fedbiad.errors import PlanError
from fedbiad.methods import FedBIAD, Focus, Method
from fedbiad.names import Name, nearest, parse
from fedbiad.network import Network
from fedbiad.plan_problems import key_problems, method_problems, resolve
from fedbiad.training.forms import Form
from fedbiad.training.local_words import Softmax

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
CORPORA = ("ptb", "wikitext2", "reddit")
NO_WORDS = "training.word_mean = 'present' needs a model with words (an lstm); {} has none: leave it out"
CLOSED = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class DataPlan:
    """Which data, and how they are spread over the clients."""

    __pydantic_config__ = CLOSED
    name: Literal["mnist", "fmnist", "digits", "ptb", "wikitext2", "reddit", "mapped"]
    """The data set; `mapped`: clients of your own, from the directory `path`."""
    clients: Count
    """How many clients the data are dealt to."""
    partition: Literal["labels", "cyclic", "dirichlet", "iid", "users"] = "labels"
    """How they are dealt: see docs/data.md. `users`: as they wrote them (Reddit)."""
    labels_per_client: Count = 5
    """Labels a client has (`labels`, `cyclic`)."""
    concentration: Positive = 0.5
    """Of the Dirichlet distribution over labels (`dirichlet`): the smaller, the less alike clients are."""
    image_size: Count | None = None
    """Images are brought to this side; None: as they are."""
    vocabulary: Count | None = None
    """Words of a language model, the commonest of the training part; all others are `<unk>`."""
    bptt: Count = 20
    """Tokens of a window."""
    carry: bool = False
    """Whether clients read their text in order, the state carried from one window to the next."""
    cased: bool = False
    """WikiText-2 with upper case."""
    collection: Literal["college", "pushshift"] = "college"
    """Which Reddit collection: see docs/data.md."""
    path: str | None = None
    """The directory of clients of your own (`name = "mapped"`)."""


@dataclass(frozen=True)
class ModelPlan:
    """Which model; its input and output sizes follow from the data."""

    __pydantic_config__ = CLOSED
    name: Literal["mlp", "cnn", "lstm"] = "mlp"
    """The kind of model."""
    hidden: Annotated[tuple[Count, ...], Field(min_length=1)] = (128,)
    """Units of the hidden layers; of a CNN or an LSTM the one width."""
    filters: tuple[Count, Count] = (8, 16)
    """Filters of the two convolutions of a CNN."""
    embedding: Count = 300
    """Width of the word vectors of an LSTM."""
    layers: Count = 2
    """Layers of an LSTM."""


@dataclass(frozen=True)
class TrainingPlan:
    """How clients train and the server steps."""

    __pydantic_config__ = CLOSED
    learning_rate: Positive
    """eta, of the clients' plain SGD."""
    iterations: Count = 20
    """V: local iterations a round."""
    batch: Count = 10
    """Samples (or windows) of a mini-batch."""
    selected: Count | Share = 0.1
    """Clients a round: a share (0.1) or a number (100)."""
    server_step: Positive = 1.0
    """gamma: how far the server goes towards the aggregate; 1 is the paper."""
    dropout: Rate = 0.0
    """Ordinary dropout inside local training, apart from what is uploaded."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of the clients' SGD."""
    clip: Positive | None = None
    """The largest norm of a client's gradient; larger ones are scaled down to it."""
    word_mean: Literal["all", "present"] = "all"
    """Whose mean a word's rows take: as all other rows, or of the clients whose data contain the word (`present`)."""
    absent_words: Softmax = "exact"
    """Words that a language model's client lacks stand in its softmax each by itself or, in half the time, together as
    one Gaussian term (`gaussian`); in local training alone: see docs/evidence.md."""
    increments: Share | None = None
    """Bytes of an increment of U, as a share of the model's: clients fetch the increments they missed, or the model if
    that is smaller. None: always the model."""
    lost_copies: Rate = 0.0
    """The share of clients that have lost their copy of U when they are asked, and fetch the model."""


@dataclass(frozen=True)
class EnginePlan:
    """How the work is done; up to rounding, and the count of skipped noise, none of it changes what comes out."""

    __pydantic_config__ = CLOSED
    block: Count | None = None
    """Clients trained side by side; None: what was measured to suit the model. Another size changes rounding alone."""
    form: Form = "auto"
    """How local training is computed; `auto` takes the fastest form that is exact (`fedbiad describe` tells)."""
    checkpoint_every: Count = 1
    """Rounds between two checkpoints; a resumed run goes on from the last."""
    threads: Count = 1
    """Threads of torch; more than one pays only for large models on idle cores."""
    workers: Count = 1
    """Processes that train blocks of clients side by side, one thread each; the result is the same to the bit."""
    transport: Literal["local", "ray"] = "local"
    """Where blocks are trained: on this machine, or on every CPU of a Ray cluster."""
    address: str | None = None
    """Of a running Ray cluster: host:port, ray://host:port or "auto"; None: one of this machine alone is started."""
    wire: bool = False
    """Send every message through its real bytes; the counts are the same either way."""
    store: Literal["memory", "disk"] = "memory"
    """Where clients' states are between rounds; on disk they are in the run directory."""


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    __pydantic_config__ = CLOSED
    data: DataPlan
    training: TrainingPlan
    name: str = "unnamed"
    """Shown in tables; by default the file's name."""
    method: str = "fedbiad"
    """A method, or `method:profile+compressor:profile`: see docs/methods.md."""
    rounds: Count = 60
    """R."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of everything random."""
    dropout_rate: Rate = 0.5
    """p, of every method that drops rows."""
    evaluate_on: Literal["test", "validation"] = "test"
    """The data U_r is judged on; validation data are held out of training."""
    evaluate_every: Count = 1
    """Rounds between two judgements."""
    evaluate_last: Count = 5
    """Rounds at the end that are all judged, whatever the interval."""
    top: Count = 1
    """An answer among this many likeliest counts as right."""
    model: ModelPlan = field(default_factory=ModelPlan)
    engine: EnginePlan = field(default_factory=EnginePlan)
    network: Network = field(default_factory=Network)
    target_accuracy: Share | None = None
    """The accuracy whose time-to-accuracy is told."""
    watch: Annotated[int, Field(ge=0)] | None = None
    """The client whose loss trend and scores are recorded; by default one that is selected often."""
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of methods, a table each: `[methods.fedbiad]`."""
    compressors: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of compressors, a table each: `[compressors.dgc]`."""

    def resolved(self, name: str | None = None) -> tuple[Method, Compressor | None]:
        """The method and the compressor of a name, with the plan's dropout rate and the options of their tables."""
        found = resolve(name or self.method, self.dropout_rate, self.methods, self.compressors)
        method, compressor, problems = found
        if method is None or problems:
            raise PlanError(problems)
        return method, compressor

    def resolved_method(self, name: str | None = None) -> Method:
        """The method alone."""
        return self.resolved(name)[0]

    def written_out(self) -> Plan:
        """The same plan with every option of its method stated, so that it means the same whatever the presets."""
        method, compressor = self.resolved()
        name = self.parsed_name
        options = {} if compressor is None else {str(name.compressor): dataclasses.asdict(compressor)}
        return self.replace(methods={name.method: dataclasses.asdict(method)}, compressors=options)

    @property
    def parsed_name(self) -> Name:
        """The name of the method, taken apart."""
        name, problems = parse(self.method)
        if name is None:
            raise PlanError(problems)
        return name

    def replace(self, **changes: Any) -> Plan:
        """The same plan with top-level fields changed, checked again."""
        return from_dict({**to_dict(self), **changes}, self.name)

    @property
    def selected_clients(self) -> int:
        """c = max(floor(kappa K), 1), or the number stated."""
        return selected_count(self.training.selected, self.data.clients)


def selected_count(selected: int | float, clients: int) -> int:
    """c = max(floor(kappa K), 1) for a share kappa; a whole number counts clients as it is."""
    return selected if isinstance(selected, int) else max(int(selected * clients + 1e-9), 1)


_ADAPTER = TypeAdapter(Plan)


def load(source: str | Path, settings: Mapping[str, str] | None = None) -> Plan:
    """Read a plan from a TOML file or by the name of a built-in experiment; `settings` override dotted keys."""
    text, name = _read(source)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError([f"not valid TOML: {error}"], str(source)) from None
    raw.setdefault("name", name)
    for key, value in (settings or {}).items():
        _set(raw, key, value)
    return from_dict(raw, str(source))


def from_dict(raw: Mapping[str, Any], where: str = "plan") -> Plan:
    """A checked plan from plain dictionaries; raises PlanError with every problem."""
    try:
        # through JSON, where strict types still take lists for tuples and tables for dataclasses
        plan = _ADAPTER.validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        problems = key_problems(error, _key_tree(Plan))
        tables = (raw.get("methods", {}), raw.get("compressors", {}))
        problems += method_problems(str(raw.get("method", "fedbiad")), 0.5, *tables)
        raise PlanError(problems + _cross_problems(raw), where) from None
    problems = method_problems(plan.method, plan.dropout_rate, plan.methods, plan.compressors)
    problems += _cross_problems(raw)
    if not problems and plan.training.increments is not None and plan.resolved_method().assigns_rows:
        problems.append(f"training.increments does not fit {plan.method}: its server sends a client some rows alone, "
                        "and increments are of the whole model; leave it out")  # fmt: skip
    if problems:
        raise PlanError(problems, where)
    return plan


def to_dict(plan: Plan) -> dict[str, Any]:
    """Plain dictionaries, with every default written out and what is None left out."""
    plain: dict[str, Any] = _without_none(dataclasses.asdict(plan))
    return plain


def to_toml(plan: Plan) -> str:
    """The plan as TOML, tables after plain keys."""
    return "\n".join(_toml_lines(to_dict(plan), ())) + "\n"


def warnings(plan: Plan) -> list[str]:
    """Settings that are allowed but probably not meant."""
    found = []
    if type(plan.training.selected) is int and plan.training.selected == 1:
        found.append("training.selected = 1 is one client a round; 1.0 would be all of them")
    engine = plan.engine
    if engine.transport == "ray" and engine.workers > 1:
        found.append(f"engine.workers = {engine.workers} has no effect on Ray, which uses every CPU of its cluster")
    if engine.transport == "local" and engine.address is not None:
        found.append(f"engine.address = {engine.address!r} has no effect without engine.transport = 'ray'")
    if plan.training.lost_copies and plan.training.increments is None:
        found.append("training.lost_copies has no effect without training.increments: clients fetch the model anyway")
    method = plan.resolved_method()
    if isinstance(method, FedBIAD):
        V, tau = plan.training.iterations, method.interval
        if 2 * tau + 1 > V:
            found.append(
                f"iterations V = {V} is too short to ever check the loss trend: the first check comes after iteration "
                f"2 tau = {2 * tau}, so patterns never adapt; use V >= {2 * tau + 1} or a smaller interval"
            )
        if method.upload == "final" and 2 * tau < V and (V - 1) % tau == 0:
            found.append(f"with V = {V} and tau = {tau} the last iteration is a check: rows just drawn are uploaded")
        if plan.rounds <= method.stage_boundary:
            found.append(f"stage two never starts: rounds = {plan.rounds}, stage_boundary = {method.stage_boundary}")
    if isinstance(method, Focus) and method.full_steps >= plan.training.iterations:
        found.append(
            f"focus saves no computation: full_steps = {method.full_steps} of V = {plan.training.iterations} "
            "iterations leave none; use fewer full_steps"
        )
    return found


def builtin_names() -> list[str]:
    """Names of the experiments that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _builtin().iterdir() if p.name.endswith(".toml"))


def _builtin() -> Any:
    return resources.files("fedbiad") / "experiments"


def _read(source: str | Path) -> tuple[str, str]:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError([f"cannot be read: {error}"], str(source)) from None
    name = str(source)
    if name not in builtin_names():
        raise PlanError([f"no such plan{nearest(name, builtin_names())}; give a .toml file or one of "
                         f"{', '.join(builtin_names())}"], name)  # fmt: skip
    text: str = (_builtin() / f"{name}.toml").read_text()
    return text, name


def _set(raw: dict[str, Any], key: str, value: str) -> None:
    """Put a value given on the command line at a dotted key; anything that is not TOML is a string."""
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *tables, last = key.split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise PlanError([f"{key}: {table} is not a table"], "--set")
    raw[last] = parsed


def _cross_problems(raw: Mapping[str, Any]) -> list[str]:
    """Values that do not fit each other; whatever is of a wrong type has its own problem already."""
    problems = []
    tables = {name: raw.get(name) for name in ("data", "training", "model")}
    data, training, model = (table if isinstance(table, dict) else {} for table in tables.values())
    clients, selected, hidden = data.get("clients"), training.get("selected"), model.get("hidden", [])
    if type(clients) is int and type(selected) is int and selected > clients:
        problems.append(f"training.selected = {selected} clients a round, but data.clients = {clients} exist")
    watch = raw.get("watch")
    if type(clients) is int and type(watch) is int and watch >= clients:
        problems.append(f"watch = {watch}, but clients are numbered 0 to {clients - 1}")
    source = DATASETS.get(data.get("name", ""))
    labels, size = data.get("labels_per_client"), data.get("image_size")
    if source and type(labels) is int and labels > source.classes:
        problems.append(f"data.labels_per_client = {labels}, but {data['name']} has {source.classes} classes")
    if source and type(size) is int and size not in source.sizes:
        sizes = " or ".join(map(str, source.sizes))
        problems.append(f"data.image_size = {size}, but {data['name']} comes in {sizes}")
    text, recurrent = data.get("name") in CORPORA, model.get("name") == "lstm"
    if text != recurrent:
        problems.append(f"model.name = {model.get('name', 'mlp')!r} does not fit data.name = {data.get('name')!r}: "
                        "an lstm reads text, the others read images")  # fmt: skip
    if training.get("word_mean") == "present" and not recurrent:
        problems.append(NO_WORDS.format(model.get("name", "mlp")))
    if training.get("absent_words") == "gaussian" and not recurrent:
        problems.append("training.absent_words = 'gaussian' is for language models: "
                        f"the {model.get('name', 'mlp')} has no output over words; leave it out")  # fmt: skip
    own = data.get("name") == "mapped"
    if own != ("path" in data):
        problems.append("data.path is missing: the directory of the clients" if own else
                        "data.path is for clients of your own: data.name = 'mapped'")  # fmt: skip
    dealt, users = data.get("partition", "labels"), own or data.get("name") == "reddit"
    if (dealt not in (["users"] if users else ["iid"])) if text or own else dealt == "users":
        kinds = "users" if users else "iid" if text else "labels, cyclic, dirichlet or iid"
        problems.append(f"data.partition = {dealt!r}: {data.get('name')} is dealt out by {kinds}")
    if text and "vocabulary" not in data:
        problems.append("data.vocabulary is missing: the number of words")
    if model.get("name") in ("cnn", "lstm") and isinstance(hidden, list | tuple) and len(hidden) > 1:
        problems.append(f"model.hidden: a {model['name']} has one hidden size, not {len(hidden)}")
    return problems


def _key_tree(cls: type) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    nested = {
        "data": DataPlan, "training": TrainingPlan, "model": ModelPlan, "engine": EnginePlan, "network": Network,
    }  # fmt: skip
    for f in dataclasses.fields(cls):
        tree[f.name] = _key_tree(nested[f.name]) if cls is Plan and f.name in nested else None
    return tree


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value


def _toml_lines(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{'.'.join(map(_key, (*path, key)))}]", *_toml_lines(value, (*path, key))]
    return lines


def _toml(value: Any) -> str:
    """JSON writes strings, numbers, booleans and flat lists as TOML does, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
