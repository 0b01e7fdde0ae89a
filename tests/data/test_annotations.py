"""Formats with a shape of their own: CoNLL and its tag schemes, BRAT and MIND.

All examples are made up here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl import Silo
from secure_fl.data.examples import Impression, Tagged
from secure_fl.data.loaders import load
from secure_fl.data.records import first_fault, scheme_of, to_iob2
from secure_fl.data.splits import patient
from tests.support.record_files import fails

# Entities, as (length, type), between single O: written in each scheme by hand-made rules.
ENTITIES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["D", "E-x"]), st.booleans()))


def written(entities: list[tuple[int, str, bool]], scheme: str) -> list[str]:
    tags: list[str] = []
    for length, kind, gap in entities:
        if gap:
            tags.append("O")
        if scheme == "IOB1":
            touching = bool(tags) and tags[-1] in (f"I-{kind}", f"B-{kind}")
            tags += [f"B-{kind}" if touching else f"I-{kind}"] + [f"I-{kind}"] * (length - 1)
        elif scheme == "IOB2":
            tags += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
        else:
            b, i, e, s = "BIES" if scheme == "BIOES" else "BILU"
            inside = [f"{i}-{kind}"] * (length - 2)
            long = [f"{b}-{kind}", *inside, f"{e}-{kind}"]
            tags += long if length > 1 else [f"{s}-{kind}"]
    return tags


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES", "BILOU"])
@given(entities=ENTITIES)
def test_every_scheme_becomes_the_same_iob2(
    scheme: str, entities: list[tuple[int, str, bool]]
) -> None:
    marker = (2, "D", True)  # makes every scheme show itself
    tags = written([marker, *entities], scheme)
    assert to_iob2(tags, scheme_of([tags])) == tuple(written([marker, *entities], "IOB2"))


@pytest.mark.parametrize(
    ("tags", "fault"),
    [
        ("O I-D B-D", None),
        ("B-D O I-D", 2),
        ("B-D I-E", 1),
        ("B-D E-D S-D O", None),
        ("B-D S-D", 1),
        ("S-D I-D", 1),
        ("S-D B-D", 1),
        ("B-D E-E", 1),
        ("E-D", 0),
    ],
)
def test_faults_are_found(tags: str, fault: int | None) -> None:
    assert first_fault(tags.split(), scheme_of([tags.split()])) == fault


def test_conll(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(
        "-DOCSTART- -X- O\n\nIbu NN I-Drug\nand CC O\n\n\nnew\tword\tNN\tI-Drug\nache NN B-Drug\n"
    )
    assert load(path, "ner") == (
        Tagged("0", ("Ibu", "and"), ("B-Drug", "O")),
        Tagged("1", ("new", "ache"), ("B-Drug", "B-Drug")),
    )


def test_sentences_of_a_document_are_one_patient_s(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("-DOCSTART- O\n\nx O\n\ny O\n\n-DOCSTART- O\n\nz O\n")
    assert [example.id for example in load(path, "ner")] == ["a:1/3", "a:1/5", "a:2/9"]


@pytest.mark.parametrize(
    ("text", "line"),
    [("x O\nExam!ple\n", 2), ("x O\n\nExam!ple NN\n", 3), ("x B-D\nExam!ple O\ny I-D\n", 1)],
)
def test_broken_conll(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text)
    where = fails(path, "ner").where
    assert (str(where["file"]), where["line"], where["field"]) == (str(path), line, "tags")


TEXT = "Took Ibu-X 10mg, got\nleft and right arm pain.\n\nFine\n"


def brat(folder: Path, annotations: str, text: str = TEXT) -> Path:
    (folder / "note.txt").write_bytes(text.encode())
    (folder / "note.ann").write_text(annotations)
    return folder


def spot(kind: str, *pieces: str, number: int = 1) -> str:
    places = [(TEXT.index(piece), TEXT.index(piece) + len(piece)) for piece in pieces]
    spans = ";".join(f"{start} {end}" for start, end in places)
    return f"T{number}\t{kind} {spans}\t{' '.join(pieces)}\n"


def test_brat(tmp_path: Path) -> None:
    notes = "".join(
        [
            spot("Drug", "Ibu-X"),
            spot("Dose", "mg", number=2),  # a part of a token tags all of it
            spot("ADR", "left", "arm pain", number=3),
            spot("ADR", "arm", number=4),  # inside of a longer one: dropped
            "R1\tof Arg1:T1 Arg2:T2\n#1\tAnnotatorNotes T1\tsure\nA1\tNegated T3\n\n",
        ]
    )
    (tmp_path / "other.txt").write_text("Not annotated")
    assert load(brat(tmp_path, notes), "ner") == (
        Tagged(
            "note/1",
            ("Took", "Ibu", "-", "X", "10mg", ",", "got"),
            ("O", "B-Drug", "I-Drug", "I-Drug", "B-Dose", "O", "O"),
        ),
        Tagged(
            "note/2",
            ("left", "and", "right", "arm", "pain", "."),
            ("B-ADR", "O", "O", "B-ADR", "I-ADR", "O"),
        ),
        Tagged("note/4", ("Fine",), ("O",)),
        Tagged("other/1", ("Not", "annotated"), None),
    )


def test_lines_of_a_brat_note_stay_in_one_part(tmp_path: Path) -> None:
    for note in range(12):
        (tmp_path / f"{note}.txt").write_text("Took aspirin.\n" * 8)
        (tmp_path / f"{note}.ann").write_text("T1\tDrug 5 12\taspirin\n")
    silo = Silo.from_files("north", tmp_path, dev=0.2, test=0.3, kind="ner")
    notes = [{patient(example) for example in part} for part in (silo.train, silo.dev, silo.test)]
    assert sum(map(len, notes)) == len(set.union(*notes)) == 12


def test_brat_spans_that_cross_a_line_begin_anew(tmp_path: Path) -> None:
    start, end = TEXT.index("got"), TEXT.index(" and")
    first, second, _ = load(brat(tmp_path, f"T1\tADR {start} {end}\tgot left\n"), "ner")
    assert isinstance(first, Tagged) and isinstance(second, Tagged)
    assert first.tags is not None and second.tags is not None
    assert first.tags[-1] == second.tags[0] == "B-ADR"


def test_brat_counts_characters_with_windows_line_ends(tmp_path: Path) -> None:
    folder = brat(tmp_path, "T1\tDrug 4 7\tIbu\n", "ü\r\n Ibu\r\n")
    assert load(folder, "ner")[1] == Tagged("note/2", ("Ibu",), ("B-Drug",))


@pytest.mark.parametrize(
    ("annotations", "line", "field"),
    [
        ("T1\tDrug 5 10\tExam!ple\n", 1, "span"),  # another text
        ("T1\tDrug 5 5\t\n", 1, "span"),
        ("T1\tDrug 5 999\tExam!ple\n", 1, "span"),
        ("\nT1\tDrug five 10\tExam!ple\n", 2, None),
        ("T1 Drug 5 10 Exam!ple\n", 1, None),
        ("Exam!ple\n", 1, None),
    ],
)
def test_broken_brat(tmp_path: Path, annotations: str, line: int, field: str | None) -> None:
    where = fails(brat(tmp_path, annotations), "ner", fix=False).where
    expected = (tmp_path / "note.ann", line, field)
    assert (where["file"], where["line"], where.get("field")) == expected


def test_brat_annotations_need_their_text(tmp_path: Path) -> None:
    (tmp_path / "lost.ann").write_text("")
    assert fails(tmp_path, "ner").where == {"file": tmp_path / "lost.ann"}


NEWS = "N1\tc\ts\tFirst title\tabs\tu\t[]\t[]\nN2\tc\ts\tSecond title\t\tu\t[]\t[]\n"


def mind(folder: Path, behaviors: str, news: str = NEWS) -> Path:
    (folder / "news.tsv").write_text(news)
    (folder / "behaviors.tsv").write_text(behaviors)
    return folder


def test_mind(tmp_path: Path) -> None:
    folder = mind(tmp_path, "1\tU1\tt\tN1 N2\tN2-1 N1-0\n2\tU2\tt\t\tN1-0\n")
    assert load(folder, "ranking") == (
        Impression(
            "1", ("First title", "Second title"), ("Second title", "First title"), (True, False)
        ),
        Impression("2", (), ("First title",), (False,)),
    )


@pytest.mark.parametrize(
    ("behaviors", "news", "line", "field"),
    [
        ("1\tU1\tt\tN1\n", NEWS, 1, None),
        ("1\tU1\tt\tN1\tN2-1\n2\tU1\tt\tN1\tN1 N2\n", NEWS, 2, "impressions"),
        ("1\tU1\tt\tN1\t\n", NEWS, 1, "impressions"),
        ("1\tU1\tt\tN1 Exam!ple\tN2-1\n", NEWS, 1, "history"),
        ("1\tU1\tt\tN1\tExam!ple-1\n", NEWS, 1, "impressions"),
        ("1\tU1\tt\tN1\tN2-1\n", "N1\tc\ts\n", 1, None),
    ],
)
def test_broken_mind(
    tmp_path: Path, behaviors: str, news: str, line: int, field: str | None
) -> None:
    where = fails(mind(tmp_path, behaviors, news), "ranking").where
    assert (where["line"], where.get("field")) == (line, field)
