"""What a guess holds of each entity type: a drug's or a person's name is not a word like others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from secure_fl.audits.attacks.guess_scores import specials
from secure_fl.audits.document import ENTITIES
from secure_fl.audits.findings import Prior
from secure_fl.data.examples import Example, Tagged
from secure_fl.learning.tasks.token_table import IGNORED


def shares(
    guess: AbstractSet[int], records: Sequence[Example], prior: Prior
) -> dict[str, dict[str, float]]:
    """The share of each type's words that were guessed, as details; none without entities."""
    found = {
        name: len(guess & words) / len(words)
        for name, words in sorted(entity_words(records, prior).items())
    }
    return {ENTITIES: found} if found else {}


def entity_words(records: Sequence[Example], prior: Prior) -> Mapping[str, AbstractSet[int]]:
    """The tokens of each entity type, as far as the model reads them."""
    tagged = [one for one in records if isinstance(one, Tagged) and one.tags]
    found: dict[str, set[int]] = {}
    if not tagged:
        return found
    encoded = prior.task.encode(tagged, prior.tokenizer, labelled=False)
    batch, banned = encoded.batch(range(len(encoded))), specials(prior)
    rows = zip(tagged, batch["input_ids"].tolist(), batch["words"].tolist(), strict=True)
    for record, ids, firsts in rows:
        word = 0
        for token, first in zip(ids, firsts, strict=True):
            word = word if first == IGNORED else first  # further pieces belong to the word before
            tag = (record.tags or ())[word]
            if token not in banned and tag != "O":
                found.setdefault(tag[2:], set()).add(token)
    return found
