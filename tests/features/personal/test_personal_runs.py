"""Whole runs with [personal]: every hospital's models, their comparison and the votes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from secure_fl import FedAvg, Silo, TrainingSettings
from secure_fl.algorithms.layers import head_names
from secure_fl.cli.main import main
from secure_fl.cli.predict import model_folder
from secure_fl.corpora import make
from secure_fl.data.examples import Text
from secure_fl.display.run_history import read_run_history
from secure_fl.display.run_page import run_page, write_run_page
from secure_fl.errors import RunError, SettingsError
from secure_fl.events import Event
from secure_fl.features.personal import feature
from secure_fl.features.personal.candidates import alone_model, personal_model, trained_part
from secure_fl.features.personal.comparison import (
    DRAWS,
    VOTES,
    Difference,
    draws,
    resampled,
    sentence,
    vote_on,
)
from secure_fl.features.personal.settings import PersonalSettings
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.federation.run_spec import RunSpec, algorithm_of
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for
from secure_fl.settings import AdapterSettings, DPSettings, ModelSettings, TaskSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support import fedkd_runs
from tests.support.killing import Killed
from tests.support.local_pilot import local_pilot, plan_of
from tests.support.policy_plans import policy
from tests.support.raising import raises

ONE = PersonalSettings(epochs=1)
FOUR = silos(4, size=64)
NAMES = [silo.name for silo in FOUR]
SOME = [*FOUR[:3], replace(FOUR[3], dev=())]  # the last one has no dev records


def personal(cfg: PersonalSettings = ONE, mode: Any = "none", **options: Any) -> Federation:
    given: dict[str, Any] = {"silos": SOME, "algorithm": FedAvg(rounds=1), **options}
    return small(mode=mode, sections={"personal": cfg}, **given)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed run of four hospitals, one of which has no dev records."""
    folder = tmp_path_factory.mktemp("personal") / "run"
    cfg = PersonalSettings(method="ditto", epochs=2, coverage=0.8, calibrate=True)
    personal(cfg, "he+secagg", folder=folder, progress=False).run()
    return folder


def section(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    found: dict[str, Any] = document["personal"]
    return found


def test_the_sealed_votes_equal_what_the_records_say(run: Path) -> None:
    """Every model is read from its folder, and measured on its hospital's records again."""
    counted = dict.fromkeys(VOTES, 0)
    for silo in SOME[:3]:
        result = Result.load(run, silo.name)
        task = result.tasks["model"]
        names = {"model": "model"} | {n: f"{silo.name}/{n}" for n in ("personal", "alone")}
        rows, scores = {}, {}
        for name, key in names.items():
            encoded = task.encode(silo.dev, result.tokenizers[key])
            outcomes = task.outcomes(result.models[key], encoded, 64)
            rows[name], scores[name] = task.rows(*outcomes), task.score(*outcomes)
        own = section(run)["party"][silo.name]
        assert own["dev"] == pytest.approx({n: s["accuracy"] for n, s in scores.items()})
        served = max(
            ("model", "personal"), key=lambda n: (scores[n]["accuracy"], -scores[n]["loss"])
        )
        drawn = draws(len(silo.dev), np.random.default_rng(seed_for(0, silo.name, "dev")))
        apart = Difference.of(*resampled(task, [rows[n] for n in (served, "alone")], drawn))
        assert own["differences"]["dev"]["served - alone"] == apart.document()
        vote = vote_on(apart, len(silo.dev))
        counted[vote] += 1
        assert own["vote"] == vote and own["use"] == ("alone" if vote == "worse" else served)
    assert section(run)["votes"] == counted and DRAWS == 1000


def test_the_model_alone_makes_as_many_passes_as_a_run_that_stopped_early() -> None:
    training = TrainingSettings(learning_rate=1e-3, batch_size=32, device="cpu")
    alone = []
    for rounds in (5, 2):
        site = fedkd_runs.site_of(silos(1, size=24)[0], ModelSettings(layers=1), training)
        site.recorder.round = 3  # the run has ended after two rounds
        alone.append(alone_model(site, RunSpec(FedAvg(rounds=rounds)), ONE).state_dict())
    assert all(torch.equal(alone[0][name], alone[1][name]) for name in alone[0])


def test_a_hospital_without_dev_records_is_named_and_has_no_vote(run: Path) -> None:
    own = section(run)["party"][NAMES[3]]
    assert own["vote"] is None and own["use"] == "model" and "dev records" in own["problem"]
    assert sum(section(run)["votes"].values()) == 3
    assert section(run)["thresholds"]["records"] == sum(len(silo.dev) for silo in SOME)
    assert not (run / "parties" / NAMES[3] / "personal").exists()
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    warned = kinds.index("warning")
    assert lines[warned]["party"] == NAMES[3] and warned < kinds.index("round_started")


def test_the_hospital_s_own_files_say_which_model_it_serves(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    for name, folder in result["serves"].items():
        use = result["personal"]["party"][name]["use"]
        assert folder == ("model" if use == "model" else f"parties/{name}/{use}")
        assert model_folder(run, name) == run / folder and (run / folder).is_dir()
    assert result["stays"] is None


def test_predict_answers_with_the_hospital_s_temperature_and_threshold(run: Path) -> None:
    from secure_fl.learning.exporting import load_exported

    result = json.loads((run / "result.json").read_text())
    text = FOUR[0].test[0].text  # type: ignore[union-attr]
    for name, answers in result["answers"].items():
        own = result["personal"]["party"][name]
        assert answers == {part: own[part]["own"] for part in ("temperature", "threshold")}
        model, tokenizer, task = load_exported(run / result["serves"][name])
        if own["use"] != "model":  # the hospital's own folder answers in the same way
            assert (task.temperature, task.threshold) == tuple(answers.values())
        record = Text("1", text)
        z = task.forward(model, task.encode([record], tokenizer, labelled=False).batch([0]))[0]
        shares = (z / answers["temperature"]).softmax(-1).tolist()
        expected = dict(zip(task.labels, shares, strict=True))
        asked = ["predict", str(run), text, "--party", name, "--json"]
        done = CliRunner().invoke(main, asked, catch_exceptions=False)
        (found,) = json.loads(done.stdout)["predictions"]
        assert found["probabilities"] == pytest.approx(expected, abs=1e-5)
        assert found["labels"] == [n for n, p in expected.items() if p >= answers["threshold"]]
    assert result["answers"][NAMES[3]]["temperature"] == pytest.approx(
        result["personal"]["temperatures"]["pooled"]
    )  # it has no dev records
    raw = CliRunner().invoke(main, ["predict", str(run), text, "--json"], catch_exceptions=False)
    assert "labels" not in json.loads(raw.stdout)["predictions"][0]


def test_the_page_has_the_votes_and_only_the_own_page_the_hospitals(run: Path) -> None:
    said = sentence(section(run)["votes"])
    own = write_run_page(run).read_text()
    assert said[1:] in own and "Models of each hospital" in own and NAMES[0] in own
    assert "Temperatures" in own and "test coverage, own" in own
    shared = run_page(read_run_history(run), shared=True)
    assert said[1:] in shared and "Models of each hospital" not in shared


def test_fewer_voters_than_min_cohort_are_not_counted() -> None:
    said: list[Event] = []
    two = [*FOUR[:2], SOME[3]]
    document = personal(silos=two, listener=said.append).run().document["personal"]
    assert document["votes"] is None and "min_cohort is 3" in document["no_votes"]
    assert {one["vote"] for one in document["party"].values()} <= {*VOTES, None}
    assert sum(isinstance(event, feature.HospitalsCompared) for event in said) == 3


def test_under_dp_own_models_stay_and_nothing_of_them_is_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dp = DPSettings(epsilon=50, noise_multiplier=1.0, accountant="rdp")
    training = TrainingSettings(batch_size=16, device="cpu", dp=dp)
    sums: list[int] = []
    summing = Cohort.sum

    async def counted(self: Cohort, values: Any, **options: Any) -> Any:
        sums.append(len(values))
        return await summing(self, values, **options)

    monkeypatch.setattr(Cohort, "sum", counted)
    folder = tmp_path / "run"
    three = FOUR[:3]
    personal(training=training, silos=three, folder=folder, progress=False).run()
    assert len(sums) == 3  # the update of each hospital, and no votes
    result = json.loads((folder / "result.json").read_text())
    assert result["personal"]["votes"] is None and "DP-SGD" in result["personal"]["no_votes"]
    assert result["stays"] == ["personal", "alone"]
    assert result["privacy"]["overall_epsilon"] < 50  # own models spent nothing
    card = (folder / "parties" / NAMES[0] / "alone" / "README.md").read_text()
    assert "Do not publish" in card and "ε" not in card
    assert "ε" in (folder / "model" / "README.md").read_text()

    result["serves"][NAMES[0]] = f"parties/{NAMES[0]}/personal"
    (folder / "result.json").write_text(json.dumps(result))
    done = CliRunner().invoke(
        main, ["push", str(folder), str(tmp_path / "out"), "--party", NAMES[0]]
    )
    assert done.exit_code == 1 or done.exception is not None
    assert not (tmp_path / "out").exists()
    from secure_fl.features.export.model_card import require_covered

    with raises(RunError, reason="not-covered"):
        require_covered(folder, folder / "parties" / NAMES[0] / "alone")
    require_covered(folder, folder / "model")
    with raises(SettingsError, field="personal.coverage"):
        personal(PersonalSettings(coverage=0.9), training=training)


def test_a_run_that_was_killed_while_it_compared_resumes_to_the_same_result(tmp_path: Path) -> None:
    three = FOUR[:3]
    whole = personal(silos=three).run()

    def kill(event: Event) -> None:
        if isinstance(event, feature.ModelChosen) and event.party == NAMES[1]:
            raise Killed

    with pytest.raises(Killed):
        personal(silos=three, folder=tmp_path, listener=kill).run()
    again = personal(silos=three, folder=tmp_path, resume=True).run()
    assert again.document["personal"] == whole.document["personal"]


def test_patience_compares_the_model_that_is_delivered(tmp_path: Path) -> None:
    training = TrainingSettings(learning_rate=2e-3, batch_size=16, patience=1, device="cpu")
    three = FOUR[:3]
    result = personal(silos=three, training=training, algorithm=FedAvg(rounds=6)).run()
    document = result.document
    held = document["model_round"]
    scores = {
        line["party"]: line["accuracy"]
        for line in document["history"]
        if line["round"] == held and line["split"] == "dev" and "pooled" not in line
    }
    compared = {n: one["dev"]["model"] for n, one in document["personal"]["party"].items()}
    assert compared == pytest.approx(scores)


def test_labels_that_only_one_hospital_has() -> None:
    own = make("ner", parties=3, seed=0, size=24)
    entities = [Silo(f"h{n}", x.train, x.dev, x.test) for n, x in enumerate(own)]
    task = TaskSettings(kind="ner", max_length=32)
    document = personal(silos=entities, task=task).run().document
    assert document["local_heads"] and sum(document["personal"]["votes"].values()) == 3

    rare = [Text(f"rare-{n}", f"rash {n} again", label="rare") for n in range(8)]
    odd = [replace(FOUR[0], train=(*rare, *FOUR[0].train)), *FOUR[1:3]]
    task = TaskSettings(labels=(*LABELS, "rare"), max_length=32)
    document = (
        personal(PersonalSettings(epochs=1, coverage=0.8), silos=odd, task=task).run().document
    )
    assert sum(document["personal"]["votes"].values()) == 3


@pytest.mark.parametrize("algorithm", ["probe", "local", "inclusivefl", "fedid"])
def test_algorithms_without_one_shared_model_are_refused(algorithm: str) -> None:
    spec = RunSpec(algorithm_of(algorithm), sections={"personal": ONE})
    with raises(SettingsError, algorithm, field="personal"):
        feature.PERSONAL_FEATURE.check(spec)


def test_thresholds_need_probabilities_of_labels() -> None:
    spec = RunSpec(
        FedAvg(), TaskSettings(kind="ner"), sections={"personal": PersonalSettings(coverage=0.9)}
    )
    with raises(SettingsError, "ner", field="personal.coverage"):
        feature.PERSONAL_FEATURE.check(spec)
    spec = replace(spec, sections={"personal": PersonalSettings(calibrate=True)})
    with raises(SettingsError, "ner", field="personal.calibrate"):
        feature.PERSONAL_FEATURE.check(spec)


# --- the methods ----------------------------------------------------------------------------------


def site_of(adapter: AdapterSettings | None = None) -> Site:
    """A site that is not part of a run."""
    training = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu")
    return fedkd_runs.site_of(FOUR[0], ModelSettings(layers=1, adapter=adapter), training)


def moved(before: torch.nn.Module, after: torch.nn.Module) -> dict[str, float]:
    """By how much each value of a model that has the same names differs."""
    old = dict(before.named_parameters())
    return {n: float((p - old[n]).detach().norm()) for n, p in after.named_parameters()}


def trained(method: Any, **settings: Any) -> tuple[set[str], dict[str, float]]:
    """Train by a method; return the names of the head, and how far each value moved."""
    site = site_of()
    shared = site.model()
    with site.surroundings():
        model = personal_model(site, shared, PersonalSettings(method=method, epochs=1, **settings))
    assert not any(moved(shared, site.model()).values())  # the shared model is not touched
    return head_names(shared), moved(shared, model)


def test_methods_train_their_own_part() -> None:
    head, norms = trained("head")
    changed = {name for name, norm in norms.items() if norm}
    assert head < changed
    assert all("norm" in name.lower() for name in changed - head)
    tight, near, free = (
        sum(trained(method, **settings)[1].values())
        for method, settings in (
            ("ditto", {"pull": 30.0}),
            ("ditto", {"pull": 1e-9}),
            ("finetune", {}),
        )
    )
    assert tight < near / 2 and near == pytest.approx(free, rel=0.01)


def test_a_model_that_diverges_is_missing_and_the_run_has_a_result() -> None:
    """The shared model is paid for, and a rate that suits clipped gradients may suit no others."""
    training = TrainingSettings(
        learning_rate=1e30, optimizer="sgd", max_grad_norm=None, batch_size=8, device="cpu"
    )
    site = fedkd_runs.site_of(FOUR[0], ModelSettings(layers=1), training)
    site.deliver(site.model().eval())
    site.recorder.round = 2  # after the run's only round
    own = feature.Comparison()
    with site.surroundings():
        models, own.problem = feature.candidates(site, RunSpec(FedAvg(rounds=1)), ONE)
        own.measure(site, models, 0)
    assert (list(models), own.use, own.vote) == (["model"], "model", None)
    assert own.problem and "'personal'" in own.problem and "'trained alone'" in own.problem
    assert own.problem in own.reason(site) and own.document(site)["dev"].keys() == {"model"}


@pytest.mark.parametrize("adapter", [None, AdapterSettings(rank=2)])
def test_a_second_adapter_begins_at_the_shared_model(adapter: AdapterSettings | None) -> None:
    site = site_of(adapter)
    shared = site.model().eval()
    with torch.no_grad():
        for name, value in shared.named_parameters():
            if "lora_B" in name:
                value.normal_(0, 0.1)  # as after a run
    both = trained_part(site, shared, PersonalSettings(method="adapter", rank=4)).eval()
    batch = next(site.train.batches(8))
    ours, theirs = site.task.forward(both, batch), site.task.forward(shared, batch)
    assert torch.allclose(ours, theirs, atol=1e-5)
    trained = {name for name, value in both.named_parameters() if value.requires_grad}
    assert all("lora" in n or n in head_names(shared) for n in trained) and trained


# --- pilots ---------------------------------------------------------------------------------------


def test_hospitals_of_a_pilot_vote_and_each_keeps_its_own_comparison(tmp_path: Path) -> None:
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), personal=ONE))
    made.lead().run()
    said = {event["text"] for event in made.seen("personal")}
    assert len(said) == 1 and len(made.seen("personal")) == len(made.members)
    assert len(made.seen("personal_choice")) == len(made.members)
    for name in made.members:
        result = json.loads((tmp_path / name / "run" / "result.json").read_text())
        assert list(result["personal"]["party"]) == [name]
        assert sentence(result["personal"]["votes"]) in said
        assert list(result["serves"]) == [name]


def site_policy(**changes: Any) -> Any:
    """Make a site's policy, with the fields of all features."""
    return policy(**changes)


def test_a_site_can_refuse_to_compare() -> None:
    from secure_fl.features.personal.feature import PERSONAL_RULES

    plan = plan_of(FedAvg(rounds=1), personal=ONE)
    allowed, refused = site_policy(), site_policy(compares=False)
    assert not list(PERSONAL_RULES.broken(allowed, plan))
    assert [one.rule for one in PERSONAL_RULES.broken(refused, plan)] == ["site.compares"]
    assert not list(PERSONAL_RULES.broken(refused, plan_of(FedAvg(rounds=1))))
    assert {*PERSONAL_RULES.sentences(allowed)} != {*PERSONAL_RULES.sentences(refused)}


def test_a_site_s_limit_on_passes_is_one_on_personal_models_too() -> None:
    from secure_fl.features.personal.feature import PERSONAL_RULES

    plan = plan_of(FedAvg(rounds=1), personal=PersonalSettings(epochs=1_000_000))
    (found,) = PERSONAL_RULES.broken(site_policy(), plan)
    assert (found.rule, found.asked, found.allowed) == ("site.max_epochs", "1000000", "3 or less")
    assert not list(PERSONAL_RULES.broken(site_policy(max_epochs=1_000_000), plan))


@pytest.mark.parametrize("asked", [{"coverage": 0.9}, {"calibrate": True}])
def test_a_site_whose_scores_stay_sums_no_losses_for_personal_models(asked: Any) -> None:
    from secure_fl.features.personal.feature import PERSONAL_RULES

    plan = plan_of(FedAvg(rounds=1), personal=PersonalSettings(**asked))
    (found,) = PERSONAL_RULES.broken(site_policy(pooled_scores=False), plan)
    assert found.rule == "site.pooled_scores" and "coverage or calibrate" in found.asked
    votes_only = plan_of(FedAvg(rounds=1), personal=ONE)
    assert not list(PERSONAL_RULES.broken(site_policy(pooled_scores=False), votes_only))
    assert not list(PERSONAL_RULES.broken(site_policy(), plan))
