"""The heads that transformers does not have: attentive pooling, and the news ranker around it.

Every weight sits in an `nn.Linear` and nothing is written in place, so per-sample gradients work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

ATTENTIVE = "attentive_pooling"  # the model type of a checkpoint with this head
FAR = -1e4  # the score of a candidate that is not there: no probability, and still finite


class AdditiveAttention(nn.Module):
    """softmax(qᵀ tanh(W x + b)) as the weights of a mean over the next-to-last dimension."""

    def __init__(self, size: int, queries: int = 200) -> None:
        super().__init__()
        self.project = nn.Linear(size, min(queries, size))
        self.query = nn.Linear(min(queries, size), 1, bias=False)
        nn.init.zeros_(self.project.bias)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Pool `values` where `mask`; where nothing is, the pool is zero."""
        scores = self.query(torch.tanh(self.project(values))).squeeze(-1)
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
        pooled: Tensor = (weights.unsqueeze(-2) @ values).squeeze(-2)
        return pooled


class AttentiveClassifier(nn.Module):
    """Backbone, attentive pooling over its tokens, dense layer (arXiv 2108.13323, Sec. "Methods").

    transformers has no class for this head: `attentive_pooling` is the one that `export` writes
    beside the weights.
    """

    def __init__(self, backbone: Any, outputs: int) -> None:
        super().__init__()
        self.config = config = backbone.config
        self.backbone = backbone
        self.pooling = AdditiveAttention(config.hidden_size)
        self.dropout = nn.Dropout(getattr(config, "hidden_dropout_prob", 0.1))
        self.classifier = nn.Linear(config.hidden_size, outputs)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        """Logits, with the backbone's hidden states and attentions where they were asked for."""
        out = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)
        pooled = self.pooling(out.last_hidden_state, attention_mask.bool())
        logits = self.classifier(self.dropout(pooled))
        return SequenceClassifierOutput(
            logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )


class NewsRanker(nn.Module):
    """NAML's user model (arXiv 1907.05576) over a language model's news vectors.

    A title's vector is the attentive pool of its tokens; a reader's, that of the titles read
    before (a learned one if there is none); a candidate's score, their dot product. A batch holds
    each of its titles once, so its rows are titles, not readers: per-reader gradients need
    batches of one reader.
    """

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.config = config = backbone.config
        self.backbone = backbone
        self.title_pooling = AdditiveAttention(config.hidden_size)
        self.user_pooling = AdditiveAttention(config.hidden_size)
        self.newcomer = nn.Linear(1, config.hidden_size, bias=False)
        self.dropout = nn.Dropout(getattr(config, "hidden_dropout_prob", 0.1))

    def titles(
        self, input_ids: Tensor, attention_mask: Tensor, **options: Any
    ) -> tuple[Tensor, Any]:
        """One vector per title, and the backbone's output."""
        out = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)
        hidden = self.dropout(out.last_hidden_state)
        return self.title_pooling(hidden, attention_mask.bool()), out

    def rank(self, titles: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        """Scores of candidates; both hold indices into `titles`, -1 where there is none."""
        read = history >= 0
        nothing = (~read.any(-1, keepdim=True)).to(titles.dtype)
        user = self.user_pooling(titles[history.clamp(min=0)], read) + self.newcomer(nothing)
        scores = (titles[candidates.clamp(min=0)] @ user.unsqueeze(-1)).squeeze(-1)
        masked: Tensor = scores.masked_fill(candidates < 0, FAR)
        return masked

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        history: Tensor,
        candidates: Tensor,
        **options: Any,
    ) -> Any:
        """Scores as logits; hidden states and attentions are those of the batch's titles."""
        vectors, out = self.titles(input_ids, attention_mask, **options)
        return SequenceClassifierOutput(
            logits=self.rank(vectors, history, candidates),
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
