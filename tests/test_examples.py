"""Every shipped settings file is well formed, listed, and runs at reduced size."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from secure_fl.config import load as config
from secure_fl.config.data import HUB, CorpusData, Data, PartyData, SourceData
from secure_fl.federation.federation import Federation
from tests.support.sampling import mostly_slow

FOLDER = Path(__file__).parent.parent / "examples"
FILES = sorted(FOLDER.glob("*.toml"))
FEW = 24  # training records of a party
ABLATION = re.compile("fedkd-(no|first)-")  # variants of fedkd-tiny


def sources(data: Data) -> list[str]:
    """The files that the records come from."""
    if isinstance(data, SourceData):
        return [data.source]
    if isinstance(data, PartyData):
        parts = [part for party in data.party for part in (party.train, party.dev, party.test)]
        return [part for part in parts if isinstance(part, str)]
    return []


def test_the_readme_lists_every_file() -> None:
    listed = set(re.findall(r"\[([\w.-]+)\]\(\1\)", (FOLDER / "README.md").read_text()))
    assert listed == {file.name for file in FOLDER.iterdir() if file.is_file()} - {"README.md"}
    assert len(FILES) > 20


def test_the_notes_are_complete() -> None:
    """Three hospitals with two notes for each patient, and both labels at each hospital."""
    import pandas

    notes = pandas.read_csv(FOLDER / "notes.csv")
    assert list(notes.columns) == ["hospital", "patient", "text", "label"]
    assert not notes.isna().any(axis=None)
    assert (notes.groupby("patient").size() == 2).all()
    assert (notes.groupby("hospital")["label"].nunique() == 2).all()
    assert notes["hospital"].nunique() == 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_is_well_formed_and_says_how_to_run_it(file: Path) -> None:
    settings = config.load(file)
    assert settings.run.name == file.stem
    assert config.loads(config.dump(settings)) == settings
    assert f"secure-fl train examples/{file.name}" in file.read_text()


@pytest.mark.parametrize(
    "file",
    mostly_slow(FILES, *(f for f in FILES if not ABLATION.match(f.stem))),
    ids=lambda f: f.stem,
)
def test_it_runs_at_reduced_size(file: Path) -> None:
    smaller = ["algorithm.rounds=1", "algorithm.epochs=1", "task.max_length=24"]
    smaller += ["training.device=cpu"]
    settings = config.load(file, smaller)
    if settings.training.dp is not None:  # the default accountant takes seconds
        settings = config.load(file, [*smaller, "training.dp.accountant=rdp"])
    missing = [s for s in sources(settings.data) if s.startswith(HUB) or not Path(s).exists()]
    if missing:
        pytest.skip("the data sets are not here")
    if settings.model.name != "tiny" and not Path(settings.model.name).is_dir():
        pytest.skip("the checkpoint is not here")
    if isinstance(settings.data, CorpusData):
        few = {"size": FEW, "public": 2 * FEW, "labelled": 2 * FEW}
        update = {name: min(getattr(settings.data, name), most) for name, most in few.items()}
        data = settings.data.model_copy(update=update)
        settings = settings.model_copy(update={"data": data})
    silos = [  # measured on training records: so few of each split may hold different labels
        replace(silo, train=silo.train[:count], dev=silo.train[:8], test=silo.train[:8])
        for silo in config.silos(settings)
        for count in [None if silo.role == "host" else FEW]  # it needs a batch of labels
    ]
    names = ("task", "model", "training", "protection")
    sections = {name: getattr(settings, name) for name in names}
    run = Federation(silos, settings.algorithm, seed=settings.run.seed, **sections).run()
    assert run.document["status"] == "finished" and run.document["metrics"]["last"]["mean"]["test"]


def test_none_points_outside_of_the_repository() -> None:
    for file in FILES:
        for source in sources(config.load(file).data):
            assert source.startswith(HUB) or FOLDER.parent in Path(source).resolve().parents, file


@pytest.mark.parametrize(
    ("name", "columns", "classes"),
    [
        ("fedavg-rte", ("sentence1", "sentence2", "label"), ["entailment", "not_entailment"]),
        ("fedkd-ade", ("text", "label"), ["Not-Related", "Related"]),
    ],
)
def test_a_data_set_that_was_brought_takes_the_place_of_the_hub(
    name: str, columns: tuple[str, ...], classes: list[str], tmp_path: Path
) -> None:
    """With the hub's columns and the names of its classes."""
    import datasets

    kinds = {column: datasets.Value("string") for column in columns[:-1]}
    kinds["label"] = datasets.ClassLabel(names=classes)
    rows = {column: [f"{column} {n}" for n in range(400)] for column in columns[:-1]}
    made = datasets.Dataset.from_dict(
        rows | {"label": [n % 2 for n in range(400)]}, features=datasets.Features(kinds)
    )
    datasets.DatasetDict({"train": made}).save_to_disk(tmp_path / "set")
    settings = config.load(FOLDER / f"{name}.toml", [f"data.source={tmp_path}/set:train"])
    found = config.silos(settings)
    labels = {getattr(one, "label", None) for one in found[0].train}
    assert len(found) == 4 and labels == set(classes) == set(settings.task.labels or ())
