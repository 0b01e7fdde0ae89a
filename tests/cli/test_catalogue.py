"""The kept catalogue of algorithms says what the registry says."""

from __future__ import annotations

import os

from secure_fl.algorithms.registry import BUILT_IN
from secure_fl.cli.catalogue import FILE, listed, names, of_entry, text_of


def test_the_catalogue_is_the_registrys() -> None:
    """`CATALOGUE=write` writes it anew."""
    text = text_of({name: of_entry(name, entry) for name, entry in BUILT_IN.items()})
    if os.environ.get("CATALOGUE") == "write":
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, "write it anew with CATALOGUE=write"


def test_every_algorithm_is_listed() -> None:
    assert names()[: len(BUILT_IN)] == list(BUILT_IN)
    for name, entry in BUILT_IN.items():
        assert listed(name) == of_entry(name, entry)
