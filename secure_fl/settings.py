"""The sections of a settings file that the whole library shares, as frozen, validated records.

Nothing here imports torch. `config.py` reads them from TOML together with the algorithm's own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["classification", "pair", "regression", "ner", "ranking"]
Protection = Literal["none", "secagg", "he", "he+secagg"]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """One table of a settings file: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class TaskSettings(Section):
    """What is learned."""

    kind: Kind = "classification"
    labels: tuple[str, ...] | None = None  # declared for all parties; None: read from their data
    positive: str | None = None  # the class whose F1 is reported; None: the last label
    max_length: Positive = 128  # tokens; longer texts are cut


class ModelSettings(Section):
    """Which transformer: "tiny" (built in), a folder, or a hub name."""

    name: str = "tiny"
    layers: Positive | None = None  # keep the first k encoder layers; None: all
    pretrained: bool = True  # False: the checkpoint's shape with fresh weights
    freeze_embeddings: bool = True  # their rows would tell which words a hospital uses


class TrainingSettings(Section):
    """How a party trains on its own records."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    batch_size: Positive = 32
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"


class ProtectionSettings(Section):
    """How sums are protected, and how few parties may form one."""

    mode: Protection = "he+secagg"
    bits: Literal[8, 12, 16, 24] = 8
    min_cohort: Positive = 3  # 2 or 1 only by explicit choice: a sum over one hospital IS it
    threshold: Positive | None = None  # survivors a sum needs; None: floor(2n/3)+1
    host_sums: Literal["masks", "sealed"] = "masks"  # small ones as masked integers, or by BFV
