"""What an algorithm is: its settings, what they ask of a site, and what a registry says of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import isabstract
from typing import TYPE_CHECKING, Any

from secure_fl.errors import SettingsError
from secure_fl.settings import ModelSettings, Positive, Section, TrainingSettings

if TYPE_CHECKING:
    from secure_fl.settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The most that a run asks of one site. No figure has a default: each is somebody's limit.

    Each line names the field of a site's policy, `[site]`, that the figure is held against.
    """

    exchanges: int  # of models or gradients in the whole run: max_rounds
    passes: int  # in one round, over own or public records: max_epochs
    steps: int  # in one round, where steps are counted (0: they are not): max_steps
    batch: int  # records, or patients under DP-SGD, that are in memory at once: max_batch
    cells: int  # of a table beside the model, as a sketch (0: there is none): max_values
    drawn: float  # share of the parties in one sum: no limit, but the result's collusion bound

    @classmethod
    def of_fit(cls, algorithm: Algorithm, training: TrainingSettings) -> Demands:
        """One exchange in each round, and whole passes by `Site.fit` over the own records."""
        dp, held = training.dp, training.batch_size
        if dp is not None and dp.physical_batch is not None:
            held = min(held, dp.physical_batch)
        return cls(
            exchanges=algorithm.rounds,
            passes=algorithm.epochs,
            steps=0,
            batch=held,
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
        """Say what these settings ask of a site, whatever their fields are called.

        `values`: of all models that it trains; 0 while these are not looked up.
        """

    @abstractmethod
    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the models that a site trains at once, given [model]; the first one travels.

        Together they are held against max_values of a site's policy.
        """

    def reads(self, model: ModelSettings) -> tuple[str, ...]:
        """Name the models that a site loads, given [model]; its rules list what it may."""
        return (model.name,)

    @property
    def pinned(self) -> bool:
        """Whether it cannot be that sites load different models under one name."""
        return True

    @classmethod
    def entry(cls) -> Entry | None:
        """Bring what a registry would say, for a class that is in none: see `registry.entry_of`."""
        return None

    @property
    def caveat(self) -> str:
        """What these settings let parties see beyond sums, for the result's statement."""
        return ""

    @property
    def balances(self) -> bool:
        """Whether a class that is looked for counts as much as the others, unless settings say."""
        return True

    def releases(self, public: int, batch: int) -> tuple[int, int] | None:
        """How many predictions a sum for the host holds, and how many such sums a run opens.

        Given the number of public records and `training.batch_size`. None: no sum holds
        predictions, so no noise could be sized for them.
        """
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """An algorithm: its settings, its party program, and what is special about it.

    Left out, a flag claims nothing: no protection that the algorithm might not give.
    """

    settings: type[Algorithm]
    program: Callable[..., Coroutine[Any, Any, None]]  # (cohort, site, settings)
    pools_data: bool = False  # a yardstick that puts all records in one place
    own_labels: bool = False  # parties may have different label sets: heads stay at home
    sums_nothing: bool = False  # nothing is ever summed
    trains_nothing: bool = False  # records are only looked at, so no budget is spent
    partial_sums: bool = False  # there are sums over some parties only
    has_host: bool = False  # one member is the host, and all hold public records
    opens_predictions: bool = False  # what the host opens are predictions, which can carry noise
    dp_covers_all: bool = False  # trains by `Site.fit` alone, so DP-SGD covers all that it sends
    guarded: str | None = (
        None  # the label, in `Site.score`, of the model that its sums move, if all
    )
    # of a round lies in what it hands to `Cohort.rounds`, so that [guard] can undo it
    adapters: tuple[str, ...] = ()  # the kinds of [model.adapter] that its program can train
    summary: str = ""

    def __post_init__(self) -> None:
        if isabstract(self.settings):
            lacking = ", ".join(sorted(self.settings.__abstractmethods__))
            raise SettingsError(
                f"{self.settings.__name__} does not say what it asks of a site: {lacking}",
                fix="write these methods, as `algorithms.fedavg` does: a site's limits are held "
                "against what they return",
            )

    @property
    def name(self) -> str | None:
        """The name that its settings give themselves."""
        default: str | None = self.settings.model_fields["name"].get_default()
        return default
