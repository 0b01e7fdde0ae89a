"""Sections of a settings file that all rooms of the library share, frozen and validated.

This module does not import torch. `config` reads the sections from TOML.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from secure_fl.field_errors import error_list, field_errors, in_python

Kind = Literal["classification", "pair", "multilabel", "regression", "ner", "ranking", "completion"]
LABELLED: frozenset[Kind] = frozenset({"classification", "pair", "multilabel", "ner"})
Protection = Literal["none", "secagg", "he+secagg"]
MASK = "[MASK]"  # the gap in a prompt, whatever the model's own token is
Positive = Annotated[int, Field(ge=1)]
PositiveReal = Annotated[float, Field(gt=0, allow_inf_nan=False)]


if TYPE_CHECKING:
    _TranslatesErrors = type  # type checkers read the fields
else:

    class _TranslatesErrors(type(BaseModel)):
        """Metaclass: `FedAvg(rouns=3)` fails with the same text as the line in a file."""

        def __call__(cls, *args, **fields):
            try:
                return super().__call__(*args, **fields)
            except ValidationError as error:
                raise _translated(cls, error) from None


class WrongValue(SettingsError, ValueError):  # noqa: N818 - it names what was given
    """A section has a wrong value; also a ValueError, as pydantic's own error is."""


def _translated(cls: type[BaseModel], error: ValidationError) -> WrongValue:
    errors = [
        (".".join(map(str, place)), in_python(cls, place, what), fix)
        for place, what, fix in field_errors(cls, error.errors(include_url=False))
    ]
    if len(errors) > 1:
        return WrongValue(error_list(errors), section=cls.__name__)
    field, what, fix = errors[0]
    return WrongValue(what, fix=fix, section=cls.__name__, field=field or None)


class Section(BaseModel, metaclass=_TranslatesErrors):
    """Base class of settings tables: frozen; unknown fields are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True
    )


class TaskSettings(Section):
    """The learning task and its labels."""

    kind: Kind = "classification"
    labels: tuple[str, ...] | None = None
    """Labels of all hospitals. Default: read from their records."""
    positive: str | None = None
    """Class whose F1 score is reported, if a record has one class. Default: the last label."""
    max_length: Positive = 128
    """Maximum number of tokens; longer texts are truncated, or read in windows."""
    windows: Annotated[int, Field(ge=1, le=64)] = 1
    """Maximum number of windows of max_length tokens in which a longer text is read. A text's
    logits are the mean of its windows' logits."""
    overlap: Annotated[int, Field(ge=0)] | None = None
    """Tokens that neighbouring windows have in common. Default: a quarter of a window."""
    prompt: Annotated[str, Field(max_length=500)] | None = None
    """Text after each record, with one [MASK]. A masked language model fills it with the word of
    a class. Default: an output layer of its own."""
    label_words: Mapping[str, Annotated[str, Field(min_length=1)]] | None = None
    """Word of each class, for prompt. Each is one token of the model."""
    score_range: tuple[float, float] | None = None
    """Lowest and highest score of a regression task, as in [0.0, 5.0]. With it, Spearman's
    correlation over all hospitals is computed from binned ranks."""

    @property
    def declared(self) -> tuple[str, ...] | None:
        """The labels by name, or those with a label word; None: read them from the records."""
        return self.labels or (tuple(self.label_words) if self.label_words else None)

    @model_validator(mode="after")
    def _range_of_scores(self) -> TaskSettings:
        low, high = self.score_range or (0.0, 1.0)
        if not low < high:
            raise ValueError("a score_range of two numbers, the smaller one first")
        if self.score_range is not None and self.kind != "regression":
            raise ValueError("a score_range only if kind is regression")
        return self

    @model_validator(mode="after")
    def _words_of_labels(self) -> TaskSettings:
        if (self.prompt is None) != (self.label_words is None):
            raise ValueError("prompt and label_words together")
        if self.prompt is None or self.label_words is None:
            return self
        if self.kind != "classification":
            raise ValueError(f"a prompt only if kind is classification, not for {self.kind}")
        if self.prompt.count(MASK) != 1:
            raise ValueError(f'a prompt with one {MASK}, as in "It was {MASK}."')
        if odd := set(self.declared or ()) ^ set(self.label_words):
            raise ValueError(f"label_words with one word for each of labels; check {min(odd)!r}")
        return self

    @model_validator(mode="after")
    def _windows_of_texts(self) -> TaskSettings:
        if self.windows > 1 and self.kind in ("pair", "ranking", "completion"):
            raise ValueError(f"windows only for single texts and sentences, not for {self.kind}")
        if self.overlap is not None and self.windows == 1:
            raise ValueError("an overlap only if windows is set")
        if self.overlap is not None and 2 * self.overlap > self.max_length:
            raise ValueError("an overlap of at most half of max_length")
        return self


class AdapterSettings(Section):
    """Adapters: small matrices around frozen weights. Only they are trained and sent."""

    kind: Literal["lora", "ffa", "exact", "dora"] = "lora"
    """lora: low-rank factors A and B. ffa: A is frozen, only B is trained and sent. exact: products
    of A and B are summed instead of factors. dora: directions and magnitudes are trained
    separately."""
    rank: Positive = 8
    """Rank r: columns of B and rows of A."""
    alpha: PositiveReal | None = None
    """An adapter's output is scaled by alpha/r. Default: 2·r."""
    targets: Literal["attention", "linear"] = "attention"
    """Linear layers that get an adapter."""
    last: Positive | None = None
    """Only the last layers of the encoder get adapters: fewer values, and a shorter backward pass.
    Default: all layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate on an adapter's input."""
    base: Literal["float32", "bfloat16"] = "float32"
    """Type of the frozen weights in memory."""
    merge: bool = False
    """Also write the complete model to the result's merged/ folder."""

    @model_validator(mode="after")
    def _folds_exactly(self) -> AdapterSettings:
        if self.kind == "exact" and self.base != "float32":
            raise ValueError(
                'base "float32" if kind is "exact": sums are added to the frozen weights, and '
                f"{self.base} would round them to zero"
            )
        return self


def lora_fields(config: Any) -> dict[str, Any]:
    """Convert a LoraConfig of peft to fields of `AdapterSettings`; refuse what these lack."""
    given, usual = vars(config), vars(type(config)())
    used = {"r", "lora_alpha", "lora_dropout", "use_dora", "target_modules", "task_type"}
    ignored = {"base_model_name_or_path", "inference_mode", "peft_version", "runtime_config"}
    other = [n for n in usual.keys() - used - ignored if given.get(n) != usual[n]]
    if other or config.target_modules not in (None, "all-linear"):
        names = ", ".join(sorted(other) or ["target_modules"])
        what = "AdapterSettings(rank=..., targets='attention' or 'linear')"
        raise ValueError(f"{what}; a LoraConfig only without {names}")
    return {
        "kind": "dora" if config.use_dora else "lora",
        "rank": config.r,
        "alpha": config.lora_alpha,
        "targets": "linear" if config.target_modules else "attention",
        "dropout": config.lora_dropout,
    }


class ModelSettings(Section):
    """The transformer: "tiny" (built in), a folder, or a hub name."""

    name: str = "tiny"
    layers: Positive | None = None
    """Keep only the first encoder layers. Default: all."""
    pretrained: bool = True
    """Load the checkpoint's weights. false: the same architecture with new random weights."""
    freeze_embeddings: bool = True
    """Embeddings are not trained: changed rows would show which words a hospital uses."""
    pooling: Literal["cls", "attentive", "mean"] | None = None
    """How token vectors become one text vector; not for NER. mean: means of the last three layers,
    scaled to length 1; it trains no values besides the output layer, which suits differential
    privacy. Default: attentive if `layers` cuts a checkpoint or if it was trained on means of
    tokens, else cls."""
    adapter: AdapterSettings | None = None
    """Small trained matrices. Default: none, the complete model is trained."""

    @field_validator("adapter", mode="before")
    @classmethod
    def _of_peft(cls, value: Any) -> Any:
        return lora_fields(value) if type(value).__name__ == "LoraConfig" else value

    @property
    def fresh(self) -> bool:
        """True if all weights start at random values, not from a checkpoint."""
        return self.name == "tiny" or not self.pretrained

    @model_validator(mode="after")
    def _frozen_under_adapters(self) -> ModelSettings:
        if self.adapter is not None and not self.freeze_embeddings:
            raise ValueError("freeze_embeddings = true with an adapter: it freezes all weights")
        return self


def _beside_the_file(text: str, info: ValidationInfo) -> str:
    """Interpret a path as relative to the settings file."""
    base = (info.context or {}).get("base")
    return text if base is None else str(base / Path(text).expanduser())


class DPSettings(Section):
    """DP-SGD: the privacy budget, and the bound and noise of gradients.

    The noise is given, or computed so that all planned rounds together cost `target_epsilon`.
    """

    epsilon: Annotated[float, Field(gt=0)]
    """Budget of the hospital's privacy ledger; it is never exceeded."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    target_epsilon: Annotated[float, Field(gt=0)] | None = None
    """Epsilon that this run may spend. Default: the complete budget."""
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    """Noise multiplier σ. Default: computed from target_epsilon."""
    noise: Literal["local", "shared"] = "local"
    """local: each hospital adds all the noise that its records need to its own updates. shared:
    each adds a share, and only the noised sum of a step is opened; this takes algorithms with one
    sum in each step (probe, fedsgd) and masks."""
    colluders: Annotated[int, Field(ge=0)] = 1
    """Hospitals that may reveal their noise, or add none, with shared noise. Every hospital knows
    its own noise, so 0 protects records from outsiders only."""
    dropouts: Annotated[int, Field(ge=0)] | None = None
    """Hospitals that may drop out of a step with shared noise: more are an error. Default: all
    hospitals minus the threshold."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Bound C on the gradient norm of one record or patient. A probe uses 0.5 at most: its features
    have length 1, so a larger bound would only add noise."""
    unit: Literal["record", "patient"] = "record"
    """Unit that is protected. patient: everything before "/" in the record id."""
    accountant: Literal["rdp", "prv"] = "prv"
    """prv gives tighter bounds. The ledger checks with both."""
    clipping: Literal["per_sample", "ghost"] = "ghost"
    """ghost needs less memory: norms and sums of large layers need no gradient per record. With the
    unit patient, per_sample is always used."""
    physical_batch: Positive | None = None
    """Records or patients in memory at once. Default: the complete batch."""
    ledger: Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)] | None = None
    """Folder that outlives runs, with PARTY/ledger.sqlite. Default: the run's own parties/."""

    @field_validator("accountant", mode="before")
    @classmethod
    def _no_gdp(cls, value: object) -> object:
        if value == "gdp":
            raise ValueError("rdp or prv; gdp underestimates the cost of sampled batches")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DPSettings:
        if self.target_epsilon is not None:
            if self.noise_multiplier is not None:
                raise ValueError("one of noise_multiplier and target_epsilon, not both")
            if self.target_epsilon > self.epsilon:
                raise ValueError("a target_epsilon of at most epsilon, the budget")
        return self


class TrainingSettings(Section):
    """Training of a hospital on its own records."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Default: depends on the model's width: 5e-5 for 768 columns, 2e-4 for 384, 2e-3 for the
    built-in model and 4e-3 for it in NER; the last two are halved if models are not averaged.
    Adapters: 2e-3, 4e-3 and 1e-2. With sgd: 0.1."""
    schedule: Literal["linear", "constant"] = "linear"
    """linear: the rate falls to 0 at the end of the run."""
    warmup: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the run in which the rate rises from 0. Default: 0.1 if linear, else 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    batch_size: Positive = 8
    """Default with dp: 32, because the records of a batch share its noise."""
    accumulate: Positive = 1
    """Batches per step of local training, processed one after the other to save memory."""
    bucketing: bool = False
    """Build random batches of texts of similar length: less padding."""
    checkpointing: bool = False
    """Recompute layers for their gradients instead of storing them: less memory, more time. Not
    with dp."""
    class_weights: Literal["balanced", "none"] | None = None
    """balanced: classes have equal weight in the loss, by this hospital's own counts, which stay
    private. Default: balanced if task.positive names a class, except with dp (a probe balances
    then too, by noised counts) or if predictions are divided by the hospital's own class shares."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    pooled_scores: bool = True
    """Sum dev and test counts over the hospitals in each round. false: scores never leave a
    hospital, and the best round has the best mean score."""
    patience: Positive | None = None
    """Rounds without a better pooled dev score after which the run ends with its best model.
    `probe` and `fedsgd` score about six rounds, and only these count. Default: train all rounds
    and keep the last model."""
    probe_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Pooled dev score of a probe, a linear model on the fixed encoder. A result below it says so.
    `secure-fl tune` measures and writes it."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Positive | None = None
    """Processor threads of a training. 1 is much faster on a busy machine. Default: 1 for the
    built-in model, else one per core."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: faster matrix products on hardware that supports it; elsewhere float32 is used."""
    dp: DPSettings | None = None
    """DP-SGD. Its max_grad_norm replaces the one of [training]. Default: none."""

    @model_validator(mode="before")
    @classmethod
    def _larger_batches_with_dp(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("dp") is not None:
            return {"batch_size": 32} | given
        return given

    @model_validator(mode="after")
    def _accounted_for(self) -> TrainingSettings:
        if self.dp is None:
            return self
        if self.precision == "bfloat16":
            raise ValueError("precision float32 with dp: bfloat16 norms are wrong by up to 1 %")
        if self.accumulate > 1:
            raise ValueError("accumulate = 1 with dp; dp.physical_batch splits a batch")
        if self.bucketing:
            raise ValueError("bucketing = false with dp: each record is drawn independently")
        if self.checkpointing:
            raise ValueError(
                "checkpointing = false with dp, because a recomputed layer would count twice in "
                "the gradients; dp.physical_batch and clipping ghost save memory"
            )
        if self.class_weights == "balanced":
            raise ValueError(
                "no class_weights with dp: they are counts of records that no noise hides, and "
                "one record would change the gradients of all others"
            )
        return self


class NoiseSettings(Section):
    """Noise on sums of predictions; it protects a hospital as a whole.

    The noise is given, or computed so that all planned sums together cost `target_epsilon`.
    """

    epsilon: PositiveReal
    """Budget of the hospital's privacy ledger; it is never exceeded."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    target_epsilon: PositiveReal | None = None
    """Epsilon that this run may spend. Default: the complete budget."""
    std: PositiveReal | None = None
    """Guaranteed standard deviation on one value of the sum. Default: from target_epsilon."""
    dropouts: Annotated[int, Field(ge=0)] | None = None
    """Hospitals that may drop out. Default: parties - threshold."""
    colluders: Annotated[int, Field(ge=0)] = 1
    """Hospitals that may reveal their noise to the host."""
    scale: PositiveReal = 64.0
    """Grid steps per unit of probability."""
    ledger: Annotated[str, Field(min_length=1), AfterValidator(_beside_the_file)] | None = None
    """Folder that outlives runs, with PARTY/ledger.sqlite. Default: the run's own parties/."""
    force: bool = False
    """Run even if the noise hides the signal."""

    @model_validator(mode="after")
    def _consistent(self) -> NoiseSettings:
        if self.target_epsilon is not None:
            if self.std is not None:
                raise ValueError("one of std and target_epsilon, not both")
            if self.target_epsilon > self.epsilon:
                raise ValueError("a target_epsilon of at most epsilon, the budget")
        return self


class ProtectionSettings(Section):
    """Protection of sums, and the minimum number of hospitals in a sum."""

    mode: Protection = "he+secagg"
    bits: Literal[4, 6, 8, 12, 16, 24] = 8
    min_cohort: Positive = 3
    """Minimum number of hospitals in a sum. Use 2 or 1 only deliberately: a sum over one hospital
    is that hospital's update."""
    threshold: Positive | None = None
    """Hospitals that must remain to open a sum. Default: floor(2n/3) + 1 of n."""
    noise: NoiseSettings | None = None
    """Noise on sums of predictions, added before they are opened. Default: none."""

    @model_validator(mode="after")
    def _noise_is_hidden(self) -> ProtectionSettings:
        if self.noise is not None and self.mode == "none":
            raise ValueError("noise only with a mode that hides updates: none would reveal it")
        return self


class PolicySettings(Section):
    """Limits for `secure-fl audit`; above a limit, the exit status is 3.

    The promises of the protection mode are always checked.
    """

    membership: Annotated[float, Field(ge=0.5, le=1)] | None = None
    """Maximum AUC of the worst membership attack on the released model, at the lower end of its
    confidence interval. Default: reported, not judged."""
    epsilon: PositiveReal | None = None
    """Maximum epsilon of every DP statement; with this limit, one is required."""
    accept: tuple[str, ...] = ()
    """Names of trials, as in the report, that may leak."""
