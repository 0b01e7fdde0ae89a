"""What is wrong with records is found and counted; patients are in one split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from secure_fl.cli.main import main
from secure_fl.config.load import loads, silos
from secure_fl.data.examples import Text
from secure_fl.data.record_problems import alike, problems, weighed
from secure_fl.data.splits import Splits, describe
from secure_fl.errors import DataError
from secure_fl.settings import DPSettings, TaskSettings, TrainingSettings
from tests.support.raising import raises

LABELS = ("a", "b")
CLASSES = TaskSettings(labels=LABELS)


def notes(*ids: str, label: str = "a") -> tuple[Text, ...]:
    return tuple(Text(id, f"the note {id}", label=label) for id in ids)


GOOD = Splits((*notes("1", "2"), *notes("3", label="b")))
LATER = Splits(
    (*notes("p/1"), *notes("q/2", label="b")), test=(*notes("p/3"), *notes("r/4", label="b"))
)
CASES = [
    (LATER, "1 patients are in both train and test"),
    (Splits((*GOOD.train, *notes("1"))), "1 texts of train are repeated"),
    (Splits(GOOD.train, dev=(*notes("1"), *notes("9", label="b"))), "in both train and dev"),
    (Splits(notes("1", "2")), "no record of train has the label b"),
    (Splits((*GOOD.train, *notes("4", label="c"))), "1 labels of train are not in the plan"),
    (Splits((*GOOD.train, Text("5", "unlabelled"))), "no label"),
    (Splits((*GOOD.train, Text("6", "long " * 9, label="a"))), "1 of 4 texts of train are cut"),
]  # fmt: skip


@pytest.mark.parametrize(("splits", "said"), CASES, ids=[said for _, said in CASES])
def test_a_fault_is_found_alone(splits: Splits, said: str) -> None:
    def lengths(texts: object) -> list[int]:
        return [len(text.split()) for text in texts]  # type: ignore[attr-defined]

    found = list(
        problems(
            "north", splits, CLASSES,
            by_patient=splits is LATER, lengths=lengths, longest=5,
        )
    )  # fmt: skip
    assert [one.party for one in found] == ["north"] and said in found[0].what and found[0].fix
    assert not list(problems("n", GOOD, CLASSES, lengths=lengths, longest=5))


def test_a_rare_class_is_worth_a_word_unless_somebody_said_what_it_counts() -> None:
    few = Splits((*notes(*"12345678"), *notes("9", label="b")))
    (found,) = problems("north", few, CLASSES)
    assert "1 of 9 training records have the label b" in found.what
    assert "task.positive" in found.fix
    assert not list(problems("north", few, CLASSES, weighed=True))
    task, training = TaskSettings(labels=LABELS), TrainingSettings()
    private = TrainingSettings(dp=DPSettings(epsilon=8.0, delta=1e-3))
    assert not weighed(task, training) and weighed(task, private)
    assert weighed(TaskSettings(labels=LABELS, positive="b"), training)
    assert weighed(task, TrainingSettings(class_weights="none"))


def test_texts_to_complete_are_not_without_a_label() -> None:
    found = describe(Splits((Text("1", "a prompt", "its completion"),)), "completion")
    assert found["train"]["labels"] == {}  # type: ignore[index]


def test_sites_with_the_same_file_are_named() -> None:
    other = Splits(notes("7", "8"))
    (found,) = alike({"north": GOOD, "south": GOOD, "west": other})
    assert found.party == "north" and "south" in found.what
    assert "of its texts" in next(iter(alike({"a": GOOD, "b": Splits(GOOD.train[:2])}))).what


def study(folder: Path, patients: list[str]) -> str:
    lines = [
        json.dumps({"id": n, "who": who, "text": f"note {n} of them", "label": "ab"[n % 2]})
        for n, who in enumerate(patients)
    ]
    (folder / "notes.jsonl").write_text("\n".join(lines))
    party = 'train = "notes.jsonl"\ndev = 0.3\ntest = 0.3\n'
    return (
        'task = {labels = ["a", "b"]}\nalgorithm = {name = "fedavg"}\nmodel = {layers = 1}\n'
        '[data]\ncolumns = {patient = "who"}\n'
        + "".join(f'[[data.party]]\nname = "{name}"\n{party}' for name in ("n", "s", "w"))
    )


def test_no_patient_is_in_two_splits(tmp_path: Path) -> None:
    text = study(tmp_path, [f"patient {n % 20}" for n in range(100)])
    for silo in silos(loads(text, tmp_path)):
        parts = [{e.id.split("/")[0] for e in part} for part in (silo.train, silo.dev, silo.test)]
        assert all(parts) and sum(map(len, parts)) == 20
        splits = Splits(tuple(silo.train), tuple(silo.dev), tuple(silo.test))
        shared = describe(splits)["shared_patients"]
        assert shared == {"train/dev": 0, "train/test": 0, "dev/test": 0}
    apart = text.replace('columns = {patient = "who"}\n', "")  # without the column they are
    (silo, *_) = silos(loads(apart, tmp_path))
    of = [{int(e.id) % 20 for e in part} for part in (silo.train, silo.test)]
    assert of[0] & of[1]


def test_a_record_that_says_not_whose_it_is_is_refused(tmp_path: Path) -> None:
    with raises(DataError, field="patient"):
        silos(loads(study(tmp_path, ["p", "", "q"]), tmp_path))


def test_the_command_says_what_to_do(tmp_path: Path) -> None:
    plan = tmp_path / "study.toml"
    plan.write_text(study(tmp_path, [f"p{n}" for n in range(100)]))
    found = CliRunner().invoke(main, ["preflight", str(plan), "--json"])
    said = [one["what"] for one in json.loads(found.output)["problems"]]
    assert found.exit_code == 2 and any("equal those of" in what for what in said)
    one = CliRunner().invoke(main, ["preflight", str(plan), "--party", "n"])
    assert one.exit_code == 0 and "no problems" in one.output
