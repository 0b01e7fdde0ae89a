"""A text classifier with attentive pooling, for transformers.

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

from .heads import ATTENTIVE, AttentiveClassifier


class AttentivePoolingConfig(PreTrainedConfig):  # type: ignore[misc]
    """The configuration of the backbone transformer, and the labels."""

    model_type = ATTENTIVE

    def __init__(self, backbone: dict[str, Any] | None = None, **fields: Any) -> None:
        self.backbone = backbone or {"model_type": "bert"}
        super().__init__(**fields)

    def inside(self) -> Any:
        """The configuration of the backbone transformer."""
        fields = dict(self.backbone)
        return AutoConfig.for_model(fields.pop("model_type"), **fields)


class AttentiveForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """A transformer, attentive pooling over its tokens, and a dense layer."""

    config_class = AttentivePoolingConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: AttentivePoolingConfig) -> None:
        super().__init__(config)
        plain = "eager" if config._attn_implementation == "eager" else None  # None: the fastest
        backbone = AutoModel.from_config(config.inside(), attn_implementation=plain)
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None
        self.model = AttentiveClassifier(backbone, len(config.id2label))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Compute the logits of each text."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.model(input_ids, mask, **options)
