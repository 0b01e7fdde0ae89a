"""Classifiers with attentive pooling, and probes, for transformers.

secure_fl saves this file and heads.py with a model's weights. They need only PyTorch and
transformers:

    AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)

The model type differs from the backbone's. So loading without `trust_remote_code=True` is an error,
instead of a backbone with a randomly initialised head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from .heads import ATTENTIVE, AttentiveClassifier, ProbeClassifier


class AttentivePoolingConfig(PreTrainedConfig):  # type: ignore[misc]
    """The configuration of the backbone transformer, the labels, and a probe's options."""

    model_type = ATTENTIVE

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        probe: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.backbone = backbone or {"model_type": "bert"}
        self.probe = probe  # options of `ProbeClassifier`; None: attentive pooling
        super().__init__(**fields)

    def inside(self) -> Any:
        """The configuration of the backbone transformer."""
        fields = dict(self.backbone)
        return AutoConfig.for_model(fields.pop("model_type"), **fields)


class AttentiveForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """A transformer, attentive pooling over its tokens or a probe's features, a dense layer."""

    config_class = AttentivePoolingConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: AttentivePoolingConfig) -> None:
        super().__init__(config)
        plain = "eager" if config._attn_implementation == "eager" else None  # None: the fastest
        backbone = AutoModel.from_config(config.inside(), attn_implementation=plain)
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None
        outputs = len(config.id2label)
        self.model = (
            AttentiveClassifier(backbone, outputs)
            if config.probe is None
            else ProbeClassifier(backbone, outputs, **config.probe)
        )
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        """Compute the logits of each text or token."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.model(input_ids, mask, **options)


class ProbeForTokenClassification(AttentiveForSequenceClassification):
    """A probe on tokens; the base class builds it."""
