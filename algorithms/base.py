"""Base classes of algorithms: settings, demands on a site, and registry entries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import isabstract
from typing import Any, Self

from pydantic import model_validator

from secure_fl.errors import SettingsError
from secure_fl.settings import ModelSettings, Positive, Section, TaskSettings, TrainingSettings

Program = Callable[..., Coroutine[Any, Any, None]]  # (cohort, site, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The most that a run asks of one site. No field has a default, since each has a limit.

    Each comment names the field of a site's policy, `[site]`, that limits the value.
    """

    exchanges: int  # of models or gradients in the whole run: max_rounds
    passes: int  # in one round, over local or public records: max_epochs
    steps: int  # in one round (0: steps are not counted): max_steps
    batch: int  # records, or patients under DP-SGD, in memory at once: max_batch
    cells: int  # of a table besides the model, such as a sketch (0: none): max_values
    drawn: float  # share of the parties in one sum: not limited; sets the collusion bound

    @classmethod
    def of_fit(cls, algorithm: Algorithm, training: TrainingSettings) -> Demands:
        """Ask for one exchange in each round, and whole passes by `Site.fit` over local records."""
        dp, batch = training.dp, training.batch_size
        if dp is not None and dp.physical_batch is not None:
            batch = min(batch, dp.physical_batch)
        return cls(
            exchanges=algorithm.rounds,
            passes=algorithm.epochs,
            steps=0,
            batch=batch,
            cells=0,
            drawn=1.0,
        )


class Algorithm(Section):
    """The settings of one algorithm; `name` picks it in a settings file."""

    name: str
    rounds: Positive = 10
    """Number of exchanges of models."""
    epochs: Positive = 1
    """Local passes over the records in each round."""

    @abstractmethod
    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Return the most that these settings ask of a site.

        `values` counts the values of all models that it trains; 0 while they are unknown.
        """

    @abstractmethod
    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the models that a site trains at once, given [model]; the first one is sent.

        The site's max_values limits their sum.
        """

    def used_only_with(self) -> Mapping[str, tuple[bool, str]]:
        """Map settings to True if they are given here, and to fields without effect otherwise."""
        return {}

    @model_validator(mode="after")
    def _require_effect(self) -> Self:
        """Refuse values other than the default in fields that other settings make ineffective."""
        for setting, (given, fields) in self.used_only_with().items():
            for field in fields.split():
                if not given and getattr(self, field) != type(self).model_fields[field].default:
                    raise ValueError(f"{field} needs {setting}: set this, or remove {field}")
        return self

    def reads(self, model: ModelSettings) -> tuple[str, ...]:
        """Name the models that a site loads, given [model]; its policy lists the permitted ones."""
        return (model.name,)

    def check_model(self, model: ModelSettings, shared: ModelSettings) -> None:
        """Refuse a party's model that these settings cannot train; `shared` is [model]."""

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse a task or a training that these settings do not fit."""

    def check_tiers(
        self, tiers: Mapping[str, str | None], model: ModelSettings, min_cohort: int
    ) -> None:
        """Refuse tiers of the hospitals that these settings cannot sum; None: by its name."""

    def sharing(self, tiers: Mapping[str, str], model: ModelSettings, min_cohort: int) -> str:
        """Describe the parts of [model] that each hospital shares; "": all share everything."""
        return ""

    @property
    def undoable_label(self) -> str | None:
        """Label of the model whose sums can be undone; None: the `undoable` of the entry."""
        return None

    @property
    def pinned(self) -> bool:
        """True if sites cannot load different models under one name."""
        return True

    @classmethod
    def entry(cls) -> Entry | None:
        """Return the registry entry; None: only a registry has it. See `registry.entry_of`."""
        return None

    @property
    def caveat(self) -> str:
        """A warning for the result if these settings let parties see more than sums."""
        return ""

    @property
    def balances(self) -> bool:
        """True if classes have equal weight by default when task.positive names a class."""
        return True

    @property
    def step_rate(self) -> float | None:
        """The chance of a record to be in a step, if each round is one step; None: by batches."""
        return None

    def releases(self, public: int, batch: int) -> tuple[int, int] | None:
        """Count the predictions in a sum for the host, and the run's sums of this kind.

        Given the number of public records and `training.batch_size`. None: no sum contains
        predictions, so there is no noise to size.
        """
        return None


class WholeModel(Algorithm):
    """Settings of an algorithm that trains the whole model; by default in whole passes."""

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for whole passes, with one exchange in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the shared model alone."""
        return (model,)


class WithoutModel(Algorithm):
    """Settings of an algorithm that loads and trains no model of [model]."""

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Return no models."""
        return ()

    def reads(self, model: ModelSettings) -> tuple[str, ...]:
        """Return no models."""
        return ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A registry entry: an algorithm's settings, its party program and its properties.

    By default no property is claimed, so no protection is promised by mistake.
    """

    settings: type[Algorithm]
    program: Program
    pools_data: bool = False  # all records are in one place, for comparison only
    own_labels: bool = False  # parties may have different label sets, and keep their heads
    sums_nothing: bool = False  # nothing is ever summed
    trains_nothing: bool = False  # records are only read, so no budget is spent
    records: str = ""  # "module:function" that reads the members' records, if they are not examples
    partial_sums: bool = False  # some sums are over some of the parties
    has_host: bool = False  # one member is the host, and all hold public records
    opens_predictions: bool = False  # the host opens predictions, which can carry noise
    dp_covers_all: bool = False  # trains by `Site.fit` alone, so DP-SGD covers all it sends
    without_dp: str = ""  # the reason, if DP-SGD does not suit what it sends from `Site.fit`
    undoable: str | None = None  # label, in `Site.score`, of the model that its sums move, if
    # a round can be undone: `Cohort.rounds` has all of its state
    adapters: tuple[str, ...] = ()  # kinds of [model.adapter] that its program can train
    summary: str = ""

    def __post_init__(self) -> None:
        if isabstract(self.settings):
            lacking = ", ".join(sorted(self.settings.__abstractmethods__))
            raise SettingsError(
                f"{self.settings.__name__} does not implement {lacking}",
                fix="write these methods, as `algorithms/base.py` does in WholeModel: a site's "
                "limits are compared with their results",
            )

    @property
    def trains_model(self) -> bool:
        """True if it trains models on examples, so a settings file can describe a whole run."""
        return not (self.trains_nothing or self.records)

    @property
    def name(self) -> str | None:
        """The default name in its settings."""
        default: str | None = self.settings.model_fields["name"].get_default()
        return default


def deferred(path: str) -> Program:
    """Return the program "module:function", which is imported on its first call: it needs torch."""
    module, _, name = path.partition(":")

    def program(*arguments: Any) -> Coroutine[Any, Any, None]:
        loaded: Program = getattr(import_module(module), name)
        return loaded(*arguments)

    return program
