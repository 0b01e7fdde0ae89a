"""The sentences on what could leak follow the matrix, for every reader and every outcome."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from secure_fl.audits.conclusions import ROWS
from secure_fl.audits.document import Access, AuditDocument, CellPart, RowPart
from secure_fl.audits.report import leaks as module
from secure_fl.audits.report.leaks import grouped, leaks
from secure_fl.audits.roles import COORDINATOR, MEMBER, PUBLIC, role_of
from tests.support.documents import document, finding, trial

COUNTS = "the number of records that a hospital sends along"
TRAINED = "[model]\nfreeze_embeddings = false\n"


def made(rows: dict[str, dict[str, Access]], settings: str = "") -> AuditDocument:
    """A document with this matrix, by row and role."""
    bag = trial("token bag", MEMBER, finding(1.0), finding(1.0, chance=0.98), finding(0.0))
    matrix = tuple(
        RowPart(
            what=what,
            cells=tuple(
                CellPart(role=role, access=access, evidence=(bag.id,))
                for role, access in cells.items()
            ),
        )
        for what, cells in rows.items()
    )
    base = document(matrix=matrix, trials=(bag,))
    return replace(base, run=replace(base.run, settings=settings))


def sealed(**changes: Access) -> dict[str, dict[str, Access]]:
    """The matrix of a protected run of three hospitals, with frozen embeddings."""
    two, one = role_of(2), role_of(1)
    hidden: dict[str, Access] = dict.fromkeys((COORDINATOR, MEMBER, one), "nothing")
    rows: dict[str, dict[str, Access]] = {
        module.UPDATE: hidden | {two: "everything"},
        "a sum of updates": {COORDINATOR: "nothing", MEMBER: "of a sum"},
        module.WORDS: hidden | {two: "nothing"},
    }
    rows = {what: dict(hidden) for what in module.SINGLE} | rows
    for role, access in changes.items():
        rows[module.WORDS][{"member": MEMBER, "coordinator": COORDINATOR}[role]] = access
    return rows


def test_every_row_of_the_matrix_has_its_words() -> None:
    public = {module.TRAINED_ON, "the label histogram"}
    sums = {row.what for row in ROWS if row.access == "of a sum"}
    assert {row.what for row in ROWS} == set(module.SINGLE) | sums | public


def test_a_protected_run_in_three_sentences() -> None:
    assert [leak.text for leak in leaks(made(sealed()))] == [
        "The coordinator could not read anything of any single hospital, nor their sum.",
        "Other hospitals see only the sum of the updates.",
        "Two of the three hospitals together can work out what the third sent. The coordinator "
        "and one hospital together could not read any other hospital's update.",
    ]


def test_trained_embeddings_reveal_words_of_the_sum_to_another_hospital() -> None:
    found = leaks(made(sealed(member="of a sum")))[1].text
    assert "which words occur in the other hospitals' notes together" in found
    assert "attack: 100\u00a0%, guessing: 98\u00a0%" in found
    assert "may find out which words occur" in leaks(made(sealed(), TRAINED))[1].text
    assert "words" not in leaks(made(sealed()))[1].text


def test_an_unprotected_coordinator_reads_and_needs_no_help() -> None:
    rows = sealed(coordinator="everything")
    rows[module.UPDATE][COORDINATOR] = "everything"
    rows[COUNTS] = {COORDINATOR: "everything", MEMBER: "nothing"}
    first, _, third = leaks(made(rows))
    assert first.icon == "full" and first.text == (
        "The coordinator could read of a single hospital: its update, which words occur in its "
        "notes (attack: 100\u00a0%, guessing: 98\u00a0%) and its number of records."
    )
    assert third.text == "The coordinator needs no hospital's help for this."


def test_what_gave_no_answer_is_never_called_safe() -> None:
    text = leaks(made(sealed(coordinator="inconclusive")))[0].text
    assert "anything" not in text and "no attack gave an answer" in text
    unknown = {what: dict.fromkeys(cells, "not tested") for what, cells in sealed().items()}
    found = leaks(made(unknown))  # type: ignore[arg-type]
    assert {leak.icon for leak in found} == {"doubt"}
    rows = sealed()
    del rows["how many records a hospital has"]  # as in a quick audit
    coordinator = leaks(made(rows))[0].text
    assert "anything" not in coordinator and "For roughly its number of records" in coordinator
    assert [leak.icon for leak in leaks(made({}))] == ["doubt", "doubt"]


@pytest.mark.parametrize(
    ("access", "icon", "words"),
    [("everything", "full", "can find"), ("nothing", "empty", "no attack could"),
     ("inconclusive", "doubt", "not known")],
)  # fmt: skip
def test_the_public_reads_the_finished_model(access: Access, icon: str, words: str) -> None:
    rows = sealed() | {module.TRAINED_ON: {PUBLIC: access}}
    found = leaks(made(rows))[-1]
    assert found.icon == icon and words in found.text


def test_a_coordinator_that_reads_the_sum_reads_its_words() -> None:
    rows = sealed(coordinator="of a sum")
    rows["a sum of updates"][COORDINATOR] = "of a sum"
    text = leaks(made(rows))[0].text
    assert "any single hospital. It could read the sum of the updates, and tell which words" in text


def test_compared_runs_share_a_sentence() -> None:
    one = made(sealed())
    other = replace(one, run=replace(one.run, name="b"))
    third = replace(made(sealed(coordinator="inconclusive")), run=replace(one.run, name="c"))
    names = [leak.runs for leak in grouped([one, other, third])]
    assert names == [f"{one.run.name} and b", "c", "all runs", "all runs"]
