"""Where an encoder layer makes units, as attention heads, and where it uses them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from secure_fl.errors import ModelError


@dataclass(frozen=True, slots=True)
class Block:
    """Where a layer makes units and uses them; `heads` names the module that cuts into heads."""

    makes: tuple[str, ...]
    uses: str
    heads: str | None = None


# BERT, RoBERTa and ELECTRA; DistilBERT
FAMILIES = (
    (
        Block(
            ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attention.output.dense",
            "attention.self",
        ),
        Block(("intermediate.dense",), "output.dense"),
    ),
    (
        Block(
            ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "attention.out_lin",
            "attention",
        ),
        Block(("ffn.lin1",), "ffn.lin2"),
    ),
)


def blocks(layer: nn.Module) -> tuple[Block, ...]:
    """The attention and feed-forward blocks of an encoder layer."""
    modules = dict(layer.named_modules())
    for family in FAMILIES:
        if all(name in modules for block in family for name in (*block.makes, block.uses)):
            return family
    raise ModelError(
        "heads and intermediate units cannot be told apart",
        model=type(layer).__name__,
        fix="use a BERT-like encoder: BERT, RoBERTa, DistilBERT, ELECTRA",
    )
