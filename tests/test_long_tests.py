"""The list of long tests names tests that exist, and they get their mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import long_tests
from tests.support.names import ROOT


def test_every_listed_test_exists() -> None:
    for name in long_tests.listed():
        file, *_, function = name.split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), name


def test_the_longest_are_chosen_until_the_others_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = tmp_path / "times.txt"
    times.write_text("3.0 a.py::one[x]\n4.0 a.py::one[y]\n5.0 a.py::two\n1.0 a.py::three\n")
    monkeypatch.setattr(long_tests, "BUDGET", 6.0)
    assert long_tests.longest(times) == [("a.py::one", 7.0)]
    monkeypatch.setattr(long_tests, "BUDGET", 1.0)
    assert [name for name, _ in long_tests.longest(times)] == ["a.py::one", "a.py::two"]


@pytest.mark.parametrize("listed", [True, False])
def test_listed_tests_are_marked(
    listed: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = request.node
    name = long_tests.function_of(item.nodeid)
    monkeypatch.setattr(long_tests, "listed", lambda: {name: 1.0} if listed else {})
    long_tests.pytest_collection_modifyitems([item])
    assert (item.get_closest_marker("long") is not None) == listed
