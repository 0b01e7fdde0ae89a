"""Each feature can be deleted, and the rest still works."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.removable import ROOT, TABLE, failures, without_entry
from secure_fl.features import FEATURES, Feature, load


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_a_copy_without_the_feature_passes_the_tests(name: str) -> None:
    assert failures(name) == []


@pytest.mark.parametrize("name", FEATURES)
def test_an_entry_is_cut_out_whole(name: str) -> None:
    made: dict[str, object] = {}
    exec(without_entry((ROOT / TABLE).read_text(encoding="utf-8"), name), made)  # noqa: S102
    assert made["FEATURES"].keys() == FEATURES.keys() - {name}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_has_a_page_and_tests(name: str) -> None:
    assert (ROOT / "docs" / FEATURES[name].doc).is_file()
    assert list((Path(__file__).parent / name).glob("test_*.py"))


def test_all_places_of_the_table_exist() -> None:
    kinds = set(Feature.__dataclass_fields__) - {"doc", "commands"}
    assert all(value is not None for kind in kinds for value in load(kind).values())
