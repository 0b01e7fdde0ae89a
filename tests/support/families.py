"""The tested families of transformers: a tiny checkpoint of each, and its supported features.

`tests/conformance/test_families.py` tries every cell of the table; docs/models.md shows it. FedAvg
and saving work for all families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from secure_fl.learning import fetching
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.settings import ModelSettings

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
SIZES = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
COLUMNS = ("FedKD", "InclusiveFL", "HeteroFL", "NER", "completion", "DP-SGD")
ROTARY = "rotary positions pair a head's channels, and a narrower head has other pairs"
FUSED = "its heads and its feed-forward units are not separate matrices"
ALONE = "one layer's weights serve at all depths"
NO_NER = "transformers has no gemma3_text model that classifies tokens"
READS = "it reads texts from both sides"
WORKS = "yes"
HIDDEN = "yes, but two networks (`tied = false`) need `hidden = false`: no complete attention maps"
SINGLY = "yes, record by record: some layers give no gradients per record"


@dataclass(frozen=True)
class Family:
    """One architecture, and why some of the columns are not for it."""

    kind: str  # as transformers calls it
    what: str
    config: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # column -> why not
    one_by_one: bool = False  # DP-SGD asks autograd for each record's gradients
    maps: bool = True  # whether FedKD's students can imitate its attention
    writes: bool = False  # whether it is a decoder

    def why_not(self, column: str) -> str | None:
        """Why a column is not for this family; None: it is."""
        reads = READS if column == "completion" and not self.writes else None
        return self.reasons.get(column, reads)


NARROW = {"HeteroFL": ROTARY}
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
FAMILIES = (
    Family("bert", "BERT, ClinicalBERT, PubMedBERT, GatorTron"),
    Family("roberta", "RoBERTa, BioMed-RoBERTa"),
    Family("xlm-roberta", "XLM-R"),
    Family("camembert", "CamemBERT"),
    Family("distilbert", "DistilBERT", {"dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 24}),
    Family("electra", "ELECTRA, BioELECTRA", {"embedding_size": 16}),
    Family("albert", "ALBERT", {"embedding_size": 16}, {"InclusiveFL": ALONE, "HeteroFL": ALONE}),
    Family("deberta-v2", "DeBERTa-v2 and v3", {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "position_buckets": 8, "position_biased_input": False,
        "type_vocab_size": 0, "pooler_hidden_size": 16,
    }, one_by_one=True),
    Family("modernbert", "ModernBERT, BioClinical ModernBERT", reasons=NARROW),
    Family("eurobert", "EuroBERT", {"num_key_value_heads": 2}, NARROW),
    Family("nomic_bert", "NomicBERT", {"head_dim": 8}, NARROW),
    Family("mpnet", "MPNet"),
    Family("longformer", "Longformer, Clinical-Longformer", {"attention_window": 8},
           one_by_one=True, maps=False),
    Family("big_bird", "BigBird, Clinical-BigBird", one_by_one=True, maps=False),
    Family("gpt2", "GPT-2", {"n_embd": 16, "n_head": 2, "n_layer": 3, "n_positions": 64},
           {"HeteroFL": FUSED}, writes=True),
    Family("llama", "Llama", GROUPED, NARROW, writes=True),
    Family("qwen3", "Qwen3", GROUPED, NARROW, writes=True),
    Family("gemma3_text", "Gemma 3 (text)", GROUPED, NARROW | {"NER": NO_NER}, writes=True),
)  # fmt: skip
BY_KIND = {family.kind: family for family in FAMILIES}


def save(folder: Path, kind: str, words: list[str] | None = None, **more: Any) -> ModelSettings:
    """Write a tiny random checkpoint of a family, with the built-in tokenizer."""
    tokenizer = tiny_tokenizer(words)
    config = transformers.AutoConfig.for_model(kind)
    given = {} if kind in ("distilbert", "gpt2") else SIZES
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    own = BY_KIND[kind].config if kind in BY_KIND else {}
    fields = {"vocab_size": len(tokenizer)} | ends | given | dict(own) | more
    config = type(config)(**fields)
    attention = fetching.supported(transformers.AutoModel, config, "sdpa")
    with fetching.seeded(1), fetching.quiet():
        model = transformers.AutoModel.from_config(config, attn_implementation=attention)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelSettings(name=str(folder))


def cell(family: Family, column: str) -> str:
    """What the table says of one family and one column."""
    if (reason := family.why_not(column)) is not None:
        return f"no: {reason}"
    if column == "FedKD" and not family.maps:
        return HIDDEN
    return SINGLY if column == "DP-SGD" and family.one_by_one else WORKS


def table() -> str:
    """The families as a table, with notes for what is more than a word."""
    cells = [[cell(family, column) for column in COLUMNS] for family in FAMILIES]
    notes = list(dict.fromkeys(text for row in cells for text in row if text != WORKS))
    marks = {text: f"{text.split()[0].strip(':,')} [{at}]" for at, text in enumerate(notes, 1)}
    lines = ["| family | type | " + " | ".join(COLUMNS) + " |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for family, row in zip(FAMILIES, cells, strict=True):
        shown = " | ".join(marks.get(text, text) for text in row)
        lines.append(f"| {family.what} | `{family.kind}` | {shown} |")
    return "\n".join([*lines, "", *(f"{at}. {text}" for at, text in enumerate(notes, 1))])


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
