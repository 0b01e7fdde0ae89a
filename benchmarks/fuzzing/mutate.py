"""Mutations of inputs: of the decoded tree for MessagePack and JSON, of bytes for others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.fuzzing.target import Form
from tests.support.mutants import changed, cut, flipped, longer

Decode = Callable[[bytes], Any]
TREES: dict[Form, tuple[Decode, Callable[[Any], bytes]]] = {
    "msgpack": (msgspec.msgpack.decode, msgspec.msgpack.encode),
    "json": (msgspec.json.decode, msgspec.json.encode),
}
SHARE = 0.7  # of the mutations of a structured input that change its tree


def of_tree(form: Form, data: bytes, seed: int) -> bytes | None:
    """Change one to three places of a decoded input; None: its bytes are to be mutated."""
    rng = random.Random(seed)  # noqa: S311 - it chooses mutations
    if form not in TREES or rng.random() > SHARE:
        return None
    decode, encode = TREES[form]
    try:
        tree = decode(data)
        for _ in range(rng.randint(1, 3)):
            tree = changed(rng, tree)
        return encode(tree)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, ValueError):
        return None


def mutated(form: Form, data: bytes, rng: random.Random) -> bytes:
    """Mutate an input without a guide."""
    tree = of_tree(form, data, rng.getrandbits(32))
    return rng.choice((flipped, cut, longer))(rng, data) if tree is None else tree
