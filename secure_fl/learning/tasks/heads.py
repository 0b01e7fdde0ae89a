"""Heads that transformers does not have: attentive pooling, a news ranker on it, and a probe.

Every weight is in an `nn.Linear` and no tensor is modified in place, so that per-sample gradients
can be computed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

ATTENTIVE = "attentive_pooling"  # the model type of a checkpoint with attentive pooling
PROBED = 3  # last layers whose hidden states are a probe's features
ABSENT_SCORE = -1e4  # of padding among candidates: its probability is 0, and its loss is finite


class AdditiveAttention(nn.Module):
    """softmax(qᵀ tanh(W x + b)) as the weights of a mean over the next-to-last dimension."""

    def __init__(self, size: int, queries: int = 200) -> None:
        super().__init__()
        self.project = nn.Linear(size, min(queries, size))
        self.query = nn.Linear(min(queries, size), 1, bias=False)
        nn.init.zeros_(self.project.bias)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Pool the `values` where `mask` is true; an empty row pools to zero."""
        scores = self.query(torch.tanh(self.project(values))).squeeze(-1)
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
        pooled: Tensor = (weights.unsqueeze(-2) @ values).squeeze(-2)
        return pooled


class AttentiveClassifier(nn.Module):
    """Backbone, attentive pooling over its tokens, dense layer (arXiv 2108.13323, Sec. "Methods").

    transformers has no class for this head, so the module `attentive_pooling` is saved with the
    weights.
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
        """Compute logits; return hidden states and attentions too if the options request them."""
        out = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)
        pooled = self.pooling(out.last_hidden_state, attention_mask.bool())
        logits = self.classifier(self.dropout(pooled))
        return SequenceClassifierOutput(
            logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )


class ProbeClassifier(nn.Module):
    """Frozen backbone, fixed features of its last layers, dense layer.

    A text's features are the means over its tokens; with `words`, every token has its own. They are
    centred, projected on `components` directions (None: not projected) and scaled to length 1.
    """

    center: Tensor
    basis: Tensor | None

    def __init__(
        self, backbone: Any, outputs: int, components: int | None = None, *, words: bool = False
    ) -> None:
        super().__init__()
        self.config = config = backbone.config
        self.backbone, self.words = backbone, words
        width = min(PROBED, config.num_hidden_layers + 1) * config.hidden_size
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("basis", torch.zeros(width, components) if components else None)
        self.classifier = nn.Linear(components or width, outputs)

    def hidden(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        """Concatenate each layer's vector of length 1, of every text or token."""
        options["output_hidden_states"] = True
        out = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)
        mask = attention_mask.unsqueeze(-1).float()
        layers = [layer[:, : mask.shape[1]].float() for layer in out.hidden_states[-PROBED:]]
        if not self.words:
            layers = [(layer * mask).sum(1) / mask.sum(1).clamp(min=1) for layer in layers]
        return torch.cat([F.normalize(layer, dim=-1) for layer in layers], dim=-1)

    def features(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        """Compute the features of every text or token."""
        centred = self.hidden(input_ids, attention_mask, **options) - self.center
        return F.normalize(centred if self.basis is None else centred @ self.basis, dim=-1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        """Compute the logits of each text, or of each token."""
        features = self.features(input_ids, attention_mask, **options)
        return SequenceClassifierOutput(logits=self.classifier(features))


class NewsRanker(nn.Module):
    """NAML's user model (arXiv 1907.05576) over a language model's news vectors.

    A title's vector is the attentive pool of its tokens. A reader's vector is the attentive pool of
    the titles read before, or a learned vector if there are none. A candidate's score is their dot
    product. A batch contains each of its titles once, so its rows are titles and not readers.
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
        """Compute one vector per title; return the backbone's output too."""
        out = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **options)
        hidden = self.dropout(out.last_hidden_state)
        return self.title_pooling(hidden, attention_mask.bool()), out

    def rank(self, titles: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        """Score candidates; both arguments hold indices into `titles`, with -1 as padding."""
        read = history >= 0
        nothing = (~read.any(-1, keepdim=True)).to(titles.dtype)
        user = self.user_pooling(titles[history.clamp(min=0)], read) + self.newcomer(nothing)
        scores = (titles[candidates.clamp(min=0)] @ user.unsqueeze(-1)).squeeze(-1)
        masked: Tensor = scores.masked_fill(candidates < 0, ABSENT_SCORE)
        return masked

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        history: Tensor,
        candidates: Tensor,
        **options: Any,
    ) -> Any:
        """Compute scores as logits; hidden states and attentions belong to the batch's titles."""
        vectors, out = self.titles(input_ids, attention_mask, **options)
        return SequenceClassifierOutput(
            logits=self.rank(vectors, history, candidates),
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
