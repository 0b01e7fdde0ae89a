"""The sections of a settings file that the whole library shares, as frozen, validated records.

Nothing here imports torch. `config` reads them from TOML together with the algorithm's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from secure_fl.errors import SettingsError
from secure_fl.faults import faults

Kind = Literal["classification", "pair", "regression", "ner", "ranking", "completion"]
Protection = Literal["none", "secagg", "he", "he+secagg"]
Positive = Annotated[int, Field(ge=1)]
PositiveReal = Annotated[float, Field(gt=0, allow_inf_nan=False)]


if TYPE_CHECKING:
    _Explained = type  # a checker reads the fields
else:

    class _Explained(type(BaseModel)):
        """Makes `FedAvg(rouns=3)` fail with the words that the same line of a file would."""

        def __call__(cls, *args, **fields):
            try:
                return super().__call__(*args, **fields)
            except ValidationError as error:
                raise _wrong(cls, error) from None


class WrongValue(SettingsError, ValueError):  # noqa: N818 - it names what was given
    """A section's values do not fit: for Python a ValueError, as pydantic's own is."""


def _wrong(cls: type[BaseModel], error: ValidationError) -> SettingsError:
    found = [
        (".".join(map(str, place)), what, fix)
        for place, what, fix in faults(cls, error.errors(include_url=False))
    ]
    if len(found) == 1:
        field, what, fix = found[0]
        return WrongValue(what, fix=fix, section=cls.__name__, field=field or None)
    lines = [f"  {field}: {what}" + (f" -> {fix}" if fix else "") for field, what, fix in found]
    said = "\n".join([f"{len(found)} faults", *lines])
    return WrongValue(said, section=cls.__name__)


class Section(BaseModel, metaclass=_Explained):
    """One table of a settings file: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class TaskSettings(Section):
    """What is learned."""

    kind: Kind = "classification"
    labels: tuple[str, ...] | None = None  # declared for all parties; None: read from their data
    positive: str | None = None  # the class whose F1 is reported; None: the last label
    max_length: Positive = 128  # tokens; longer texts are cut
    score_range: tuple[float, float] | None = None  # least and greatest score of a regression, such
    # as [0.0, 5.0]: with it, Spearman's correlation over all hospitals follows from bins of ranks

    @model_validator(mode="after")
    def _range_of_scores(self) -> TaskSettings:
        low, high = self.score_range or (0.0, 1.0)
        if not low < high:
            raise ValueError("a score_range of two numbers, the lesser one first")
        if self.score_range is not None and self.kind != "regression":
            raise ValueError("no score_range where kind is not regression")
        return self


class AdapterSettings(Section):
    """[model.adapter]: small matrices around frozen weights, and all that is trained and sent."""

    kind: Literal["lora", "ffa", "exact", "dora"] = "lora"  # ffa: A frozen, B alone travels;
    # exact: products of A and B are summed, not factors; dora: directions and magnitudes apart
    rank: Positive = 8  # r: columns of B, rows of A
    alpha: PositiveReal | None = None  # an adapter counts alpha/r times; None: 2·r, so twice
    targets: Literal["attention", "linear"] = "attention"  # which linear layers of a transformer's
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of what an adapter reads
    base: Literal["float32", "bfloat16"] = "float32"  # how frozen weights are held in memory
    merge: bool = False  # also write the whole model, in the result's merged/

    @model_validator(mode="after")
    def _folds_exactly(self) -> AdapterSettings:
        if self.kind == "exact" and self.base != "float32":
            raise ValueError(
                'base "float32" where kind is "exact": sums are added to the frozen weights, and '
                f"{self.base} would round them away"
            )
        return self


class ModelSettings(Section):
    """Which transformer: "tiny" (built in), a folder, or a hub name."""

    name: str = "tiny"
    layers: Positive | None = None  # keep the first k encoder layers; None: all
    pretrained: bool = True  # False: the checkpoint's shape with fresh weights
    freeze_embeddings: bool = True  # their rows would tell which words a hospital uses
    pooling: Literal["cls", "attentive"] | None = None  # how tokens become a text's vector; not for
    # NER; None: attentive where `layers` cuts a checkpoint, or one was trained on means of tokens
    adapter: AdapterSettings | None = None  # None: the whole model is trained

    @property
    def fresh(self) -> bool:
        """Whether all weights begin at chance; a checkpoint's have learned something already."""
        return self.name == "tiny" or not self.pretrained

    @model_validator(mode="after")
    def _frozen_under_adapters(self) -> ModelSettings:
        if self.adapter is not None and not self.freeze_embeddings:
            raise ValueError("freeze_embeddings = true with an adapter: it freezes all weights")
        return self


def _beside_the_file(text: str, info: ValidationInfo) -> str:
    """Take a path as relative to the settings file."""
    base = (info.context or {}).get("base")
    return text if base is None else str(base / Path(text).expanduser())


class DPSettings(Section):
    """DP-SGD: what one record (or patient) may cost, and how its gradient is bounded and hidden.

    The noise is either given, or found so that all planned rounds together cost `target_epsilon`.
    """

    epsilon: Annotated[float, Field(gt=0)]  # the budget of the silo's ledger, never exceeded
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    target_epsilon: Annotated[float, Field(gt=0)] | None = None  # None: the whole budget
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None  # σ; None: from target_epsilon
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0  # C, of one unit's gradient
    unit: Literal["record", "patient"] = "record"  # patient: what Example.id says before "/"
    accountant: Literal["rdp", "prv"] = "prv"  # prv is tighter; the ledger checks by both
    clipping: Literal["per_sample", "ghost"] = "ghost"  # ghost: less memory, for norms and
    # sums of large layers follow without a gradient of each record; patients are always per_sample
    physical_batch: Positive | None = None  # units held in memory at once; None: all of a batch
    ledger: Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)] | None = None
    # a folder that outlives runs, with PARTY/ledger.sqlite; None: the run's own parties/

    @field_validator("accountant", mode="before")
    @classmethod
    def _no_gdp(cls, value: object) -> object:
        if value == "gdp":
            raise ValueError("rdp or prv; gdp reports less than is spent when batches are sampled")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DPSettings:
        if self.target_epsilon is not None:
            if self.noise_multiplier is not None:
                raise ValueError("one of noise_multiplier and target_epsilon, not both")
            if self.target_epsilon > self.epsilon:
                raise ValueError("a target_epsilon up to the budget epsilon")
        return self


class TrainingSettings(Section):
    """How a party trains on its own records."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] | None = None  # None: by the model's width, 5e-5
    # for 768 columns, 2e-4 for 384, 2e-3 for the built-in model, 4e-3 where it finds entities, and
    # half of both where nobody averages it (adapters: 2e-3, 4e-3, 1e-2; with sgd 0.1)
    schedule: Literal["linear", "constant"] = "linear"  # linear: down to 0 at the run's end
    warmup: Annotated[float, Field(ge=0, lt=1)] | None = None  # share of the run in which the rate
    # rises from 0; None: 0.1 if linear, else 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    batch_size: Positive = 8  # left out with dp: 32, for a batch's records share its noise
    accumulate: Positive = 1  # batches to a step of local training, one after the other in memory
    bucketing: bool = False  # batches of texts of like length, drawn by chance: less padding
    checkpointing: bool = False  # layers are computed again for their gradients, instead of kept:
    # less memory, more time; not under dp
    class_weights: Literal["balanced", "none"] | None = None  # balanced: classes count alike in
    # the loss, by this party's own counts, which it tells nobody; None: so where task.positive
    # names a class, but not with dp, nor where predictions are divided by own shares
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    pooled_scores: bool = True  # sum dev and test counts over the hospitals in each round; false:
    # scores never leave a hospital, and best rounds follow from their mean
    patience: Positive | None = None  # rounds without a better pooled dev score, after which the
    # run ends with what it was after the best; None: all rounds, and what is there after the last
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: of products, in less time
    # where there are instructions for it; elsewhere it trains in float32
    dp: DPSettings | None = None  # with it, dp.max_grad_norm takes the place of max_grad_norm

    @model_validator(mode="before")
    @classmethod
    def _larger_batches_with_dp(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("dp") is not None:
            return {"batch_size": 32} | given
        return given

    @model_validator(mode="after")
    def _exact_norms(self) -> TrainingSettings:
        if self.dp is not None and self.precision == "bfloat16":
            raise ValueError("precision float32 with dp: bfloat16 norms miss the bound by 1%")
        return self

    @model_validator(mode="after")
    def _accounted_for(self) -> TrainingSettings:
        if self.dp is not None and self.accumulate > 1:
            raise ValueError("accumulate = 1 with dp: dp.physical_batch takes a batch in parts")
        if self.dp is not None and self.bucketing:
            raise ValueError("bucketing = false with dp: each record is drawn by its own coin")
        if self.dp is not None and self.checkpointing:
            raise ValueError(
                "checkpointing = false with dp: a layer that is computed twice would be counted "
                "twice in its records' gradients; dp.physical_batch and clipping ghost save memory"
            )
        if self.dp is not None and self.class_weights == "balanced":
            raise ValueError(
                "no class_weights with dp: they are counts of records, which no noise hides, and "
                "one record's would change the gradients of all others"
            )
        return self


class NoiseSettings(Section):
    """[protection.noise]: noise on sums of predictions; protects a hospital as a whole.

    The noise is found so that all planned sums together cost `target_epsilon`, or it is given.
    """

    epsilon: PositiveReal  # the budget of the hospital's ledger, never exceeded
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    target_epsilon: PositiveReal | None = None  # what this run may cost; None: the whole budget
    std: PositiveReal | None = None  # guaranteed on one value of the sum; None: target_epsilon's
    dropouts: Annotated[int, Field(ge=0)] | None = None  # None: parties - threshold
    colluders: Annotated[int, Field(ge=0)] = 1  # parties that may tell the host their noise
    scale: PositiveReal = 64.0  # grid steps per unit of probability
    ledger: Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)] | None = None
    # a folder that outlives runs, with PARTY/ledger.sqlite; None: the run's own parties/
    force: bool = False  # run although the noise drowns the signal

    @model_validator(mode="after")
    def _consistent(self) -> NoiseSettings:
        if self.target_epsilon is not None:
            if self.std is not None:
                raise ValueError("one of std and target_epsilon, not both")
            if self.target_epsilon > self.epsilon:
                raise ValueError("a target_epsilon up to the budget epsilon")
        return self


class ProtectionSettings(Section):
    """How sums are protected, and how few parties may form one."""

    mode: Protection = "he+secagg"
    bits: Literal[4, 6, 8, 12, 16, 24] = 8
    min_cohort: Positive = 3  # 2 or 1 only by explicit choice: a sum over one hospital IS it
    threshold: Positive | None = None  # survivors a sum needs; None: floor(2n/3)+1
    noise: NoiseSettings | None = None  # on sums of predictions, before they are opened

    @model_validator(mode="after")
    def _noise_is_hidden(self) -> ProtectionSettings:
        if self.noise is not None and self.mode == "none":
            raise ValueError("noise under a mode that hides shares: with none, each would be seen")
        return self


class GuardSettings(Section):
    """[guard]: every round is tested by all parties on their own dev records, and voted on.

    What the votes say is a sealed sum. A refused round is undone at all parties alike.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.5  # of the votes: so many against refuse a round
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.02  # how much worse a round may make the dev
    # records of a party before it votes against it, as a share of them that turn wrong
    errors: Annotated[float, Field(ge=0)] = 0.25  # and so many standard errors of its dev records
    max_growth: Annotated[float, Field(gt=1)] | None = 10.0  # of a sum's squared norms, over those
    # of the last admitted round, at first over a party's own; more is a vote against; None: any
    most: Positive = 5  # refused rounds; with one more the run stops, and says so
    again: bool = True  # another round makes up for a refused one; false: it is left out
    search: bool = False  # sum over halves of the parties after a refusal, to leave out who is in
    # every refused sum; members may then learn each other's counts of records


class PolicySettings(Section):
    """[policy]: what `secure-fl audit` lets pass; beyond it, the exit status is 3.

    What the protection promises is always asked for: nobody may see what `he+secagg` hides.
    """

    membership: Annotated[float, Field(ge=0.5, le=1)] | None = None  # AUC of the released model's
    # worst membership attack, at the lower end of its interval; None: told, not judged
    epsilon: PositiveReal | None = None  # the most a DP statement may say, and there must be one
    accept: tuple[str, ...] = ()  # trials that may leak, knowingly, as the report names them
