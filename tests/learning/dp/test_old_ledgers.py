"""A ledger that is put back from a backup would spend again what it forgot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl.errors import TamperError
from secure_fl.learning.dp.dp_sgd import fit_privately
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.learning.site import Site
from tests.support.private import make_site
from tests.support.raising import raises

SETTINGS: dict[str, Any] = {"epsilon": 30.0, "delta": 1e-3, "passes": 3}


def trained(folder: Path, passes: int) -> Site:
    site = make_site(ledger=open_ledger(folder, "north"), **SETTINGS)
    model = site.model()
    for _ in range(passes):
        fit_privately(site, model, 1)
    return site


def spent(site: Site) -> float:
    assert site.privacy is not None
    found = site.privacy.spent()
    return 0.0 if found is None else found


def put_back(folder: Path) -> tuple[Site, dict[str, Any]]:
    """A site that trained twice, and its state; of its ledger, the copy of after the first time."""
    site = trained(folder, 1)
    old = {file: file.read_bytes() for file in folder.iterdir()}
    fit_privately(site, site.model(), 1)
    saved = site.state_dict()
    for file in folder.iterdir():
        file.unlink()
    for file, data in old.items():
        file.write_bytes(data)
        file.chmod(0o600)
    return site, saved


def test_without_its_head_an_old_ledger_states_less_than_was_spent(tmp_path: Path) -> None:
    _, saved = put_back(tmp_path / "north")
    del saved["privacy"]["head"]
    resumed = trained(tmp_path / "north", 0)
    resumed.load_state_dict(saved)
    assert spent(resumed) < 0.8 * spent(trained(tmp_path / "fresh", 2))


def test_a_run_does_not_go_on_with_a_ledger_that_lacks_what_it_spent(tmp_path: Path) -> None:
    site, saved = put_back(tmp_path / "north")
    resumed = trained(tmp_path / "north", 0)
    with raises(TamperError, "restore the newest copy", reason="older-copy"):
        resumed.load_state_dict(saved)
    with raises(TamperError, reason="older-copy"):  # nor does the process that saw it change
        fit_privately(site, site.model(), 1)


def test_a_ledger_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    site = trained(tmp_path / "north", 1)
    saved = site.state_dict()
    (tmp_path / "north" / "ledger.sqlite").unlink()
    resumed = trained(tmp_path / "north", 0)
    with raises(TamperError, reason="older-copy"):
        resumed.load_state_dict(saved)
    with pytest.raises(TamperError):
        fit_privately(site, site.model(), 1)
