"""Models as they are, on all hospitals' test records: sealed, paired, never over two crowds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from secure_fl import FedAvg, Silo, TaskSettings, evaluate
from secure_fl.cli.main import main
from secure_fl.config.load import load
from secure_fl.data.splits import write
from secure_fl.errors import CohortError, DataError, ModelError, SettingsError
from secure_fl.features.evaluation.algorithm import Evaluate, EvaluatedModel
from secure_fl.features.evaluation.evaluation import Evaluation, evaluate_settings, named, pinned
from secure_fl.features.evaluation.examine import pulls, read
from secure_fl.features.evaluation.page import evaluation_page, hospitals_of
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.learning.exporting import CARD, export
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.classification import Classification, label_name
from secure_fl.learning.tasks.regression import Regression
from secure_fl.learning.tasks.task import Task
from secure_fl.pilot.site_memory import OpenedQuestions
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import Company, broken_rules
from secure_fl.settings import MASK, ModelSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

TASK = TaskSettings(labels=LABELS, max_length=32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models: one has learned a little, one some more."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rounds in (("less", 1), ("more", 6)):
        training = TrainingSettings(learning_rate=5e-3, batch_size=16, device="cpu")
        small(FedAvg(rounds=rounds, epochs=2), training=training, folder=folder / name).run()
    return folder / "less", folder / "more"


def unequal() -> list[Silo]:
    """One hospital has two test records."""
    few, some, many = silos(size=96, seed=1)
    return [Silo(few.name, few.train, (), few.test[:2]), some, many]


def guesses(run: Path, hospitals: list[Silo]) -> Any:
    """What a model says of all test records put together."""
    records = [record for silo in hospitals for record in silo.test]
    answers = Result.load(run).predict_records(records)
    return np.array([a["label"] for a in answers]), np.array([label_name(r) for r in records])


def test_scores_and_paired_differences_are_those_of_all_records(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    hospitals = unequal()
    found = evaluate(runs, hospitals, task=TASK, folder=tmp_path / "e")
    right = []
    for run in runs:
        said, gold = guesses(run, hospitals)
        right.append(said == gold)
        assert found.scores[run.name]["accuracy"] == right[-1].mean()
        records = [record for silo in hospitals for record in silo.test]
        own = Result.load(run).evaluate(records)
        shared = ("f1", "macro_f1", "mcc", "loss", "calibration_error", "auroc")
        same = {name: own[name] for name in shared}
        assert {name: found.scores[run.name][name] for name in same} == pytest.approx(same)
    apart = found.differences["more"]["accuracy"]
    step = right[1].astype(float) - right[0]  # who is right alone: McNemar's
    half = 1.959964 * np.sqrt(np.square(step - step.mean()).sum()) / step.size
    assert apart["difference"] == pytest.approx(step.mean(), abs=1e-12)
    low, high = step.mean() - half, step.mean() + half
    assert apart["interval"] == pytest.approx([low, high], abs=1e-6)
    assert found.document["protection"]["mode"] == "he+secagg"
    assert found.document["privacy"] is None
    page = (tmp_path / "e" / "report.html").read_text()
    assert "truly ade" in page and "<svg" in page and "at hospital-1" in page
    kept = Evaluation.load(found.save(tmp_path / "kept"))
    assert kept.document == Evaluation.load(tmp_path / "e").document == found.document
    assert "more" in repr(found) and set(found.to_frame()["model"]) == {"less", "more"}


def test_a_plain_checkpoint_whose_classes_have_another_order(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Without our card, and with its outputs the other way round, it says the same."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(runs[1] / "model")
    head = model.classifier
    head.weight.data, head.bias.data = head.weight.data.flip(0), head.bias.data.flip(0)
    names = {k: model.config.id2label[1 - k] for k in (0, 1)}
    model.config.id2label, model.config.label2id = names, {n: k for k, n in names.items()}
    place = tmp_path / "plain"
    model.save_pretrained(place)
    for file in (runs[1] / "model").glob("tokenizer*"):
        (place / file.name).write_bytes(file.read_bytes())
    assert not (place / CARD).exists()
    found = evaluate([runs[1], place], silos(), task=TASK.model_copy(update={"labels": None}))
    more, plain = found.scores["more"], found.scores["plain"]
    assert plain == pytest.approx(more, abs=1e-6)


@pytest.mark.parametrize(
    "reading",
    [
        {"windows": 3},
        {"prompt": f"this is {MASK}", "label_words": {"ade": "new", "no-ade": "old"}},
    ],
)
def test_a_model_reads_records_as_it_did_in_training(reading: Any, tmp_path: Path) -> None:
    model_settings, labels = ModelSettings(layers=1), LABELS[::-1]
    tokenizer = load_tokenizer(model_settings)
    trained = make_task(TaskSettings(labels=labels, max_length=16, **reading))
    model = load_model(model_settings, trained, tokenizer, 0)
    export(model, tokenizer, place := tmp_path / "other", trained)
    found = evaluate([place], silos(), task=TASK)  # 32 tokens, no window, no prompt
    records = [record for silo in silos() for record in silo.test]
    own = trained.evaluate(model, trained.encode(records, tokenizer))
    assert found.scores["other"]["loss"] == pytest.approx(own["loss"], abs=1e-6)
    digests = {read(str(place), task).digest() for task in (make_task(TASK), trained)}
    assert len(digests) == 2


@pytest.mark.parametrize("label", ["a", "LABEL_0"])
def test_models_that_do_not_fit_are_refused(
    runs: tuple[Path, Path], tmp_path: Path, label: str
) -> None:
    place = tmp_path / "other"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(runs[0] / "model")
    model.config.id2label = {0: label, 1: "LABEL_1"}
    model.config.label2id = {label: 0, "LABEL_1": 1}
    model.save_pretrained(place)
    with raises(ModelError, "no-ade", field="task"):
        evaluate([runs[0], place], silos(), task=TASK)
    with raises(ModelError, field="task"):
        evaluate(runs, silos(), task=TaskSettings(labels=("ade", "no-ade", "maybe")))
    with raises(ModelError):
        evaluate([tmp_path / "nothing"], silos(), task=TASK)
    with raises(ModelError):
        evaluate(["tiny"], silos(), task=TASK)
    with raises(SettingsError, field="algorithm.models"):
        evaluate([], silos(), task=TASK)


@pytest.mark.parametrize("models", [["x/m-3", "a/m", "b/m"], ["a/m", "x/m-2", "b/m", "y/m-2"]])
def test_each_model_has_a_label_of_its_own(models: list[str]) -> None:
    made = named(models, here=False)
    assert [model.name for model in made] == models
    assert len({model.label for model in made}) == len(models)
    assert made[0].label == Path(models[0]).name  # the first model is the reference


@pytest.mark.parametrize("option", [["--set", "run.seed=1"], ["--out", "there"], ["--json"]])
def test_options_without_effect_on_an_invitation_are_refused(
    option: list[str], tmp_path: Path
) -> None:
    plan, invitation = tmp_path / "plan.toml", tmp_path / "evaluation.toml"
    plan.write_text('dataset = "ade"')
    asked = ["evaluate", "model", "--plan", str(plan), "--invite", str(invitation), *option]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2 and "edit the plan" in done.output
    assert not invitation.exists()


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    config.save_pretrained(tmp_path / "t5")
    with raises(ModelError, "decoder"):
        evaluate([tmp_path / "t5"], silos(), task=TASK)


def test_a_site_without_test_records_is_told_so(runs: tuple[Path, Path]) -> None:
    one, *others = silos()
    with raises(DataError, party=one.name, split="test"):
        evaluate(runs[:1], [Silo(one.name, one.train), *others], task=TASK)


def test_a_hospital_with_test_records_alone_is_evaluated_and_trains_nothing(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    hospitals = [Silo(one.name, (), (), one.test) for one in silos()]
    found = evaluate(runs[:1], hospitals, task=TASK)
    assert found.scores == evaluate(runs[:1], silos(), task=TASK).scores
    with raises(DataError, party=hospitals[0].name, field="train"):
        Federation(hospitals, FedAvg(rounds=1), task=TASK)
    with raises(DataError, field="train"):
        Silo("empty", ())


def test_files_of_test_records_alone_are_enough_for_an_evaluation(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    text = 'algorithm = {name = "fedavg"}\n'
    for one in silos():
        write(one.test, tmp_path / f"{one.name}.jsonl")
        text += f'[[data.party]]\nname = "{one.name}"\ntest = "{one.name}.jsonl"\n'
    (tmp_path / "study.toml").write_text(text)
    settings = load(tmp_path / "study.toml")
    found = evaluate_settings(runs[:1], settings, tmp_path / "e", lambda event: None)
    assert found.document["records"] == {"train": 0, "dev": 0, "test": found_records(found)}
    (tmp_path / "none.toml").write_text(text.replace('test = "hospital-1.jsonl"', ""))
    with raises(SettingsError, field="data.party.1.train"):
        load(tmp_path / "none.toml")


def found_records(found: Evaluation) -> int:
    (one,) = found.document["metrics"]["last"]["counts"].values()
    return int(one["loss"][0])


def test_a_record_with_another_label_is_named(runs: tuple[Path, Path]) -> None:
    hospitals = silos()
    odd = Silo("odd", hospitals[0].train, (), [record_of(hospitals[0], "maybe")])
    with raises(DataError, party="odd", split="test", field="label"):
        evaluate(runs[:1], [odd, *hospitals[1:]], task=TASK)


def record_of(silo: Silo, label: str) -> Any:
    record: Any = silo.test[0]
    return type(record)(record.id, record.text, label=label)


@pytest.mark.parametrize(
    "training",
    [TrainingSettings(pooled_scores=False), TrainingSettings(dp={"epsilon": 1.0})],  # type: ignore[arg-type]
)
def test_settings_of_training_that_it_cannot_keep_are_refused(training: Any) -> None:
    with pytest.raises(SettingsError):
        small(Evaluate(models=named(["anywhere"])), training=training)


# --- in a pilot -----------------------------------------------------------------------------------


def invited(folder: Path, run: Path, **options: Any) -> LocalPilot:
    plan = plan_of(pinned([run], TASK), training=TrainingSettings(device="cpu"))
    return local_pilot(folder, plan, count=4, **options)


def test_an_evaluation_is_an_invitation_like_any_other(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    pilot = invited(tmp_path, runs[1])
    pilot.lead().run()
    found = [Evaluation.load(tmp_path / name / "run") for name in pilot.members]
    assert all(one.scores == found[0].scores for one in found)
    said, gold = guesses(runs[1], list(pilot.members.values()))
    assert found[0].scores["more"]["accuracy"] == (said == gold).mean()
    assert set(found[0].document["metrics"]["last"]["party"]) == {"hospital-1"}
    document = pilot.lead().document()
    assert not any("accuracy" in str(value) for value in document.values())


def test_a_hospital_whose_rules_share_its_score_tells_the_others_itself(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    pilot = invited(tmp_path, runs[1])
    pilot.sharing = frozenset({"hospital-2"})
    for name in pilot.members:
        pilot.start(name)
    pilot.lead().run()
    (others,) = {str(hospitals_of(document_at(tmp_path, n), own=False)) for n in pilot.members}
    said, gold = guesses(runs[1], [pilot.members["hospital-2"]])
    assert others == str({"hospital-2": {"more": float((said == gold).mean())}})
    first = document_at(tmp_path, "hospital-1")
    assert set(hospitals_of(first)) == {"hospital-1", "hospital-2"}
    page, handed = evaluation_page(first), evaluation_page(first, shared=True)
    assert "at hospital-1" in page and "at hospital-2" in page
    assert "at hospital-1" not in handed and "at hospital-2" in handed
    assert "hospital-3" not in page and "hospital-4" not in page
    for labels in (list(LABELS), list(LABELS)[::-1]):  # counts are sorted, their columns are not
        text = evaluation_page(first | {"task": first["task"] | {"labels": labels}})
        assert re.findall("taken for ([a-z-]+)", text)[:2] == labels
    assert "accuracy" not in str(pilot.lead().document())


def document_at(folder: Path, name: str) -> dict[str, Any]:
    return Evaluation.load(folder / name / "run").to_json()


@pytest.mark.parametrize("noted", [False, True])
def test_the_same_question_over_fewer_hospitals_is_refused(
    noted: bool, runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over four, and then over three: the difference is what the fourth one's records are."""
    if not noted:
        monkeypatch.setattr(OpenedQuestions, "admit", lambda *_: None)
    pilot = invited(tmp_path, runs[1])
    pilot.lead().run()
    first = Evaluation.load(tmp_path / "hospital-1" / "run")
    pilot.plan = pilot.plan.model_copy(
        update={"run": pilot.plan.run.model_copy(update={"name": "again", "seed": 7})}
    )
    pilot.kill("hospital-4")
    pilot.nap = lambda seconds: None  # type: ignore[method-assign]
    if noted:
        with pytest.raises(CohortError):
            pilot.lead(patience=0.0).run()
        told = {e["party"] for e in pilot.seen("refused") if "same was asked" in e["why"]}
        assert told == {"hospital-1", "hospital-2", "hospital-3"}
        return
    pilot.lead(patience=0.0).run()
    second = Evaluation.load(tmp_path / "hospital-1" / "again")
    records = [
        sum(np.sum(found.document["metrics"]["last"]["counts"]["more/test"][f"truly {label}"])
            for label in LABELS)
        for found in (first, second)
    ]  # fmt: skip
    assert records[0] - records[1] == len(pilot.members["hospital-4"].test)


def test_a_site_admits_it_by_name_model_and_digest(runs: tuple[Path, Path]) -> None:
    cfg = pinned(runs, TASK)
    company = Company("a", ("a", "b", "c"), None, 3, "f")

    def broken(cfg: Evaluate, **rules: Any) -> set[str]:
        plan = plan_of(cfg, training=TrainingSettings(device="cpu"))
        policy = SitePolicy.model_validate(rules)
        import datetime

        found = broken_rules(policy, plan, company, datetime.date(2027, 1, 1))
        return {one.rule for one in found}

    names = [one.name for one in cfg.models]
    allowed = {"algorithms": ["evaluate"], "models": names}
    rules = {"site.algorithms", "site.models", "plan.digests", "site.dp.required"}
    assert broken(cfg) & rules == {"site.algorithms", "site.models"}
    assert not broken(cfg, **allowed) & rules  # what trains nothing spends nothing
    loose = Evaluate(models=tuple(EvaluatedModel(name=n, label="x") for n in names[:1]))
    assert broken(loose, **allowed) & rules == {"plan.digests"}


def test_another_model_under_the_same_name_is_refused(runs: tuple[Path, Path]) -> None:
    (one,) = pinned(runs[:1], TASK).models
    other = one.model_copy(update={"name": str(runs[1] / "model")})
    with raises(ModelError, field="algorithm.models"):
        small(Evaluate(models=(other,)), task=TASK).run()


# --- how far single records move a metric is what leaving them out does, to first order ---------


def left_out(task: Task, z: torch.Tensor, gold: torch.Tensor) -> dict[str, np.ndarray]:
    """Compute the share of each record in metrics, by counting without it."""
    whole = task.pooled([task.counts([z], [{"labels": gold}])])
    found: dict[str, list[float]] = {name: [] for name in whole}
    for record in range(len(gold)):
        rest = torch.arange(len(gold)) != record
        without = task.pooled([task.counts([z[rest]], [{"labels": gold[rest]}])])
        for name in found:
            found[name].append(whole[name] - without[name])
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("spread", [1.0, 1e-3])  # the last: guesses that hardly differ
def test_of_scores(spread: float) -> None:
    gold = torch.linspace(0, 5, 200)
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0))
    z = (3 + spread * (gold + noise))[:, None]
    require_same(Regression("regression"), z, gold, ("pearson", "mse", "loss"))


def test_of_classes() -> None:
    draw = torch.Generator().manual_seed(0)
    gold = torch.randint(0, 2, (200,), generator=draw)
    z = torch.randn(200, 2, generator=draw) + torch.eye(2)[gold]
    names = ("accuracy", "f1", "macro_f1", "mcc", "auroc", "average_precision", "loss")
    require_same(Classification("classification", ("no", "yes")), z, gold, names)


def require_same(task: Task, z: torch.Tensor, gold: torch.Tensor, names: tuple[str, ...]) -> None:
    pairs = [z], [{"labels": gold}]
    found = pulls(task, task.rows(*pairs), task.counts(*pairs))
    expected = left_out(task, z, gold)
    for name in names:
        assert found[name].sum() == pytest.approx(0, abs=1e-3), name
        apart = np.abs(found[name] - expected[name]).max()
        assert apart < 0.05 * np.abs(expected[name]).max(), name


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[3] / "docs" / "evaluation.md"
    monkeypatch.chdir(tmp_path)
    code, _tuning = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    exec(code, {})  # noqa: S102 - the code of the docs
    said = capsys.readouterr().out
    assert "<Evaluation over 3 hospitals, test accuracy: short" in said and "interval" in said
