"""Commands around a run: data, init, settings, doctor."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.registry import ALGORITHMS, BUILT_IN
from secure_fl.cli.doctor import TESTED
from secure_fl.cli.init import CORPORA
from secure_fl.cli.settings import describe_fields, sections
from secure_fl.config import load as config
from secure_fl.corpora import NAMES
from secure_fl.data.splits import load
from secure_fl.display.figures import WITHOUT_SUMS
from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.federation.federation import Federation
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.settings import DPSettings, Section, TrainingSettings
from tests.support.command_line import ran, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    file = tmp_path / "notes.csv"
    rows = [f"{k},secret text {k},{'ade' if k % 3 else 'none'}" for k in range(60)]
    file.write_text("\n".join(["id,note,code", *rows, ""]))
    return file


COLUMNS = ("--column", "text=note", "--column", "label=code")


def test_describing_counts_and_quotes_nothing(notes: Path) -> None:
    found = ran("data", "describe", notes, *COLUMNS)
    assert "60 records" in found.stdout
    assert "66.7 %" in found.stdout
    assert "secret" not in found.stdout
    counts = json.loads(run("data", "describe", notes, *COLUMNS, "--json").stdout)
    assert counts["train"]["labels"] == {"ade": 40, "none": 20}


def test_describing_tells_what_parts_share(notes: Path) -> None:
    found = run("data", "describe", notes, notes, *COLUMNS)
    assert "60 texts are in both train/dev" in found.stdout
    other = notes.with_name("other.csv")
    other.write_text(notes.read_text().replace("secret", "another"))
    told = run("data", "describe", notes, other, *COLUMNS).stdout
    assert "are in both" not in told  # ids are numbers of rows in both files


def test_splitting_loses_nothing_and_repeats(notes: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        assert run("data", "split", notes, "--out", tmp_path / out, *COLUMNS).exit_code == 0
    parts = {
        part: load(tmp_path / "a" / f"{part}.jsonl", "classification")
        for part in ("train", "dev", "test")
    }
    ids = [example.id for part in parts.values() for example in part]
    assert sorted(ids, key=int) == [str(k) for k in range(60)]
    for part in parts:
        name = f"{part}.jsonl"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_splitting_keeps_the_notes_of_a_patient_together(tmp_path: Path) -> None:
    notes = tmp_path / "notes.csv"
    rows = [f"{k},note {k},{'ade' if k % 3 else 'none'},p{k // 5}" for k in range(200)]
    notes.write_text("\n".join(["id,note,code,person", *rows, ""]))
    columns = (*COLUMNS, "--column", "patient=person")
    ran("data", "split", notes, "--out", tmp_path / "a", *columns)
    parts = {
        part: {e.id.split("/")[0] for e in load(tmp_path / "a" / f"{part}.jsonl", "classification")}
        for part in ("train", "dev", "test")
    }
    assert all(parts.values()) and sum(map(len, parts.values())) == 40


def test_splitting_over_hospitals_gives_each_a_folder(notes: Path, tmp_path: Path) -> None:
    options = ("--parties", 3, "--dev", 0, "--partition", "dirichlet_class", "--alpha", 9)
    ran("data", "split", notes, "--out", tmp_path / "h", *options, *COLUMNS)
    files = sorted(p.relative_to(tmp_path / "h") for p in (tmp_path / "h").glob("*/*"))
    assert files == [Path(f"hospital-{k}/{p}.jsonl") for k in (1, 2, 3) for p in ("test", "train")]
    assert sum(len(load(tmp_path / "h" / f, "classification")) for f in files) == 60


def test_files_are_replaced_only_when_asked(notes: Path, tmp_path: Path) -> None:
    arguments = ("data", "split", notes, "--out", tmp_path / "a", *COLUMNS)
    assert run(*arguments).exit_code == 0
    (tmp_path / "a" / "dev.jsonl").unlink()
    assert run(*arguments).exit_code == 2
    assert not (tmp_path / "a" / "dev.jsonl").exists()  # all or nothing
    assert run(*arguments, "--force").exit_code == 0


@pytest.mark.parametrize("name", NAMES)
def test_corpora_are_made_and_can_be_read_again(name: str, tmp_path: Path) -> None:
    ran("data", "make", name, "--out", tmp_path, "--parties", 2, "--size", 12)
    kind = next(k for k, corpus in CORPORA.items() if corpus == name)
    assert len(load(tmp_path / "hospital-2" / "train.jsonl", kind)) == 12  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("describe", "nowhere.csv"), "nowhere.csv"),
        (("describe", "{notes}", "--column", "text=nothing"), "no such column"),
        (("describe", "{notes}", "--column", "txt=note"), "FIELD=COLUMN"),
        (("describe", "{notes}", *COLUMNS, "--column", "text=code"), "text is given twice"),
        (("split", "{notes}", "--out", "{out}", *COLUMNS, "--alpha", "-1", "--parties", "2"), "0"),
        (("split", "{notes}", "--out", "{out}", *COLUMNS, "--parties", "50"), "minimum"),
        (("make", "adee", "--out", "{out}"), "did you mean ade?"),
    ],
)
def test_bad_data_exits(arguments: tuple[str, ...], text: str, notes: Path, tmp_path: Path) -> None:
    found = ran("data", *(a.format(notes=notes, out=tmp_path / "out") for a in arguments), code=2)
    assert text in found.output
    assert not (tmp_path / "out").exists()


# --- init -----------------------------------------------------------------------------------------


PAIRS = {  # each task with one algorithm and with one that has a host, each algorithm with one task
    *((task, algorithm) for task in CORPORA for algorithm in ("fedavg", "fedid")),
    *(("classification", n) for n, entry in ALGORITHMS.items() if entry.trains_model),
}


def test_what_needs_no_sum_is_written_as_the_registry_has_it() -> None:
    assert set(WITHOUT_SUMS) == {name for name, entry in ALGORITHMS.items() if entry.sums_nothing}
    assert {n for n, word in WITHOUT_SUMS.items() if word == "POOLED"} == {
        name for name, entry in ALGORITHMS.items() if entry.pools_data
    }


@pytest.mark.parametrize(("task", "algorithm"), sorted(PAIRS))
def test_every_file_of_init_is_ready_to_run(task: str, algorithm: str, tmp_path: Path) -> None:
    found = run("init", tmp_path / "new", "--task", task, "--algorithm", algorithm)
    if ALGORITHMS[algorithm].has_host and task not in ("classification", "pair"):
        assert found.exit_code == 2 and "--task" in found.output
        assert not (tmp_path / "new").exists()
        return
    assert found.exit_code == 0, found.output
    written = (tmp_path / "new" / "federation.toml").read_text().splitlines()
    assert not [line for line in written[3:] if len(line) > 100 or re.search(r"[^ ]#", line)]
    settings = config.load(tmp_path / "new" / "federation.toml", ["data.size=12"])
    assert settings.training.learning_rate is None  # which follows from the model's width
    assert settings.algorithm.name == algorithm
    assert settings.protection.mode == "he+secagg"
    made = Federation.of(settings)  # reads the data, checks the labels and the rules
    assert isinstance(made, Federation)
    assert next(iter(made.tasks.values())).kind == task


@pytest.mark.parametrize("parties", [1, 2, 5])
def test_init_fits_min_cohort_to_the_parties(parties: int, tmp_path: Path) -> None:
    assert run("init", tmp_path, "--parties", parties).exit_code == 0
    settings = config.load(tmp_path / "federation.toml")
    assert settings.protection.min_cohort == min(3, parties)


def test_shares_of_several_labels_are_of_records(tmp_path: Path) -> None:
    rows = ["a;b", "a", "", "a"]
    file = tmp_path / "codes.csv"
    file.write_text("\n".join(["text,label", *(f"n {k},{x}" for k, x in enumerate(rows)), ""]))
    shown = ran("data", "describe", file, "--task", "multilabel").stdout
    assert re.search(r"\ba +3 +75.0 %", shown) and re.search(r"\bb +1 +25.0 %", shown)


def test_printed_commands_of_a_folder_with_spaces_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my study"
    file = f"'{folder}/federation.toml'"
    assert f"secure-fl train {file}" in ran("init", folder).stdout
    assert f"#     secure-fl train {file}\n" in (folder / "federation.toml").read_text()


def test_a_folder_that_cannot_be_written_is_described_as_such(notes: Path) -> None:
    found = ran("data", "split", notes, "--out", "/proc/none", *COLUMNS, code=2)
    assert "free space" in found.stderr


def test_init_replaces_only_when_asked(tmp_path: Path) -> None:
    assert run("init", tmp_path).exit_code == 0
    (tmp_path / "federation.toml").write_text("mine")
    assert run("init", tmp_path).exit_code == 2
    assert (tmp_path / "federation.toml").read_text() == "mine"
    assert run("init", tmp_path, "--force").exit_code == 0
    assert "algorithm" in tomllib.loads((tmp_path / "federation.toml").read_text())


# --- doctor ---------------------------------------------------------------------------------------


def test_the_doctor_reports_on_everything() -> None:
    found = run("doctor", "--json")
    report = json.loads(found.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    problems = [check for check in report["checks"] if check["status"] == "problem"]
    assert found.exit_code == (1 if problems else 0)
    assert report["healthy"] == (not problems)
    assert {"python", "torch", "memory", "disk", "installation", "encryption"} <= set(checks)
    assert checks["encryption"]["status"] == "ok", checks["encryption"]
    assert all(check["fix"] for check in problems)
    assert "encryption" in run("doctor").stdout


def test_the_doctor_knows_the_versions_that_are_tested() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    assert {name: pins[name] for name in TESTED} == dict(TESTED)


def test_the_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secure_fl.cli.doctor.TESTED", {"no-such-package": "1.0"})
    monkeypatch.setattr("secure_fl.cli.doctor.LINKED", ("no_such_folder",))
    found = ran("doctor", code=1)
    assert "pip install no-such-package==1.0" in found.stdout
    assert "core.symlinks" in found.stdout


# --- init with differential privacy ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "algorithm", "noise"),
    [
        ((), "probe", "shared"),
        (("--task", "ner"), "fedavg", "local"),
        (("--algorithm", "fedsgd"), "fedsgd", "shared"),
        (("--algorithm", "fedkd"), "fedkd", "local"),
    ],
)
def test_init_chooses_noise(
    given: tuple[str, ...], algorithm: str, noise: str, tmp_path: Path
) -> None:
    found = ran("init", tmp_path, "--dp", 3, "--parties", 4, *given)
    assert "next: secure-fl budget" in found.output
    settings = config.load(tmp_path / "federation.toml")
    assert settings.algorithm.name == algorithm and settings.training.dp is not None
    assert (settings.training.dp.epsilon, settings.training.dp.noise) == (3.0, noise)
    if noise == "shared":
        assert settings.algorithm.rounds == 60  # each is a step
    shown = ran("budget", tmp_path / "federation.toml")
    assert "ε" in shown.output


# --- settings -------------------------------------------------------------------------------------


def test_every_field_is_described_once() -> None:
    for title, section in sections().items():
        names = [d.name for d in describe_fields(section)]
        assert len(set(names)) == len(names) > 0, title
    classes: list[type[Section]] = [DPSettings, TrainingSettings, SitePolicy]
    for section in (*classes, *(entry.settings for entry in BUILT_IN.values())):
        names = [d.name for d in describe_fields(section)]
        assert names == list(section.model_fields), section


def test_types_bounds_and_docstrings_are_read_off() -> None:
    found = {d.name: d for d in describe_fields(DPSettings)}
    assert found["epsilon"].allowed == "number > 0" and found["epsilon"].default == ""
    assert found["unit"].allowed == '"record", "patient"' and found["unit"].default == '"record"'
    assert found["delta"].allowed == "number in (0, 1)"
    assert "outlives runs" in found["ledger"].help
    inherited = {d.name: d.help for d in describe_fields(Evaluate)}["epochs"]
    assert inherited == {d.name: d.help for d in describe_fields(FedAvg)}["epochs"] != ""


def test_one_section_is_shown_and_a_wrong_name_lists_all() -> None:
    shown = ran("settings", "fedid")
    assert "distill_epochs = 1" in shown.output
    assert run("settings").output.splitlines() == list(sections())
    wrong = ran("settings", "nope", code=2)
    assert "no section 'nope'" in wrong.output
