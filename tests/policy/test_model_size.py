"""How much memory a plan may ask for: no program starts, and no weight is drawn, beyond it."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import transformers

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.baselines.settings import FetchSGD
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.errors import CohortError, ModelError
from secure_fl.features import places
from secure_fl.field_errors import sections
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.builtin import tiny_tokenizer
from secure_fl.learning.models import load_backbone
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.model_size import BUILT_IN, check_size, trained_values, values_asked
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import PolicyRefusal
from secure_fl.settings import (
    ModelSettings,
    ProtectionSettings,
    Section,
    TrainingSettings,
)
from tests.support.clinic import Clinic
from tests.support.local_pilot import plan_of
from tests.support.raising import raises


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model's shape alone, of BERT-large: nobody could load it here by accident."""
    place = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    transformers.BertConfig(intermediate_size=4096, **shape).save_pretrained(place)
    return str(place)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("layers", [None, 1, 4])
def test_it_counts_what_is_trained(frozen: bool, layers: int | None) -> None:
    spec = ModelSettings(layers=layers, freeze_embeddings=frozen)
    model = load_backbone(spec, tiny_tokenizer(), 0)
    assert trained_values(spec) == sum(v.numel() for v in trainable(model).values()) > 0


def test_the_built_in_model_is_allowed_without_building_it() -> None:
    assert trained_values(ModelSettings(freeze_embeddings=False, pooling="attentive")) < BUILT_IN
    code = (
        "import sys\n"
        "from secure_fl.pilot.plan import read_plan\n"
        "from secure_fl.policy.model_size import check_size\n"
        "from secure_fl.policy.policy_file import SitePolicy\n"
        "check_size(SitePolicy(), read_plan(sys.argv[1]), 'north')\n"
        "print({'torch', 'transformers'} & set(sys.modules) or 'neither')"
    )
    text = write_plan(plan())
    run = [sys.executable, "-c", code, text]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "neither"
    with raises(PolicyRefusal, "site.max_values", party="north"):
        check_size(SitePolicy(max_values=1000), plan(), "north")


def test_a_large_model_is_counted_without_its_memory(folder: str) -> None:
    trained_values(ModelSettings())  # what is imported on first use is not the model's
    tracemalloc.start()
    found = trained_values(ModelSettings(name=folder))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    layer = 4 * (1024**2 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    assert found == 24 * layer
    assert held < found / 10


def plan(algorithm: Algorithm | None = None, **model: Any) -> Plan:
    return plan_of(algorithm or FedAvg(), model=ModelSettings(**model))


def test_more_values_than_the_site_allows_are_refused_by_name(folder: str) -> None:
    asked = plan(name=folder)
    values = values_asked(asked)
    check_size(SitePolicy(), asked, "north")  # as it comes: half a billion
    check_size(SitePolicy(max_values=values), asked, "north")
    with pytest.raises(PolicyRefusal) as caught:
        check_size(SitePolicy(max_values=values - 1), asked, "north")
    (broken,) = caught.value.broken
    assert broken.rule == "site.max_values"
    assert f"asked for {values}; allowed: {values - 1} or less" in str(broken)
    assert f"set max_values = {values} in [site]" in broken.fix


@pytest.mark.parametrize(
    "bomb",
    [
        FetchSGD(columns=2**31),
        FetchSGD(rows=10**12),
        FetchSGD(rows=10**6, columns=10**6),
        FetchSGD(compression=1e-9),
        FetchSGD(compression=1e-300),
    ],
    ids=["columns", "rows", "both", "compression", "tiny compression"],
)
def test_a_sketch_larger_than_any_model_is_refused(bomb: FetchSGD) -> None:
    with raises(PolicyRefusal, "site.max_values", party="north"):
        check_size(SitePolicy(), plan(bomb), "north")
    check_size(SitePolicy(), plan(FetchSGD()), "north")


def test_all_models_that_are_trained_at_once_count() -> None:
    teacher, student = (trained_values(ModelSettings(layers=layers)) for layers in (3, 1))
    assert values_asked(plan(FedKD(student_layers=1), layers=3)) == teacher + student
    deepest = trained_values(ModelSettings(layers=4))
    assert values_asked(plan(InclusiveFL(), layers=1)) == deepest  # tiers have their own depths


def test_a_model_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    for model in ({"name": str(tmp_path)}, {"name": "tiny", "layers": 10**9}):
        with pytest.raises(ModelError):
            check_size(SitePolicy(), plan(**model), "north")


def test_a_pilot_refuses_it_before_anything_is_read(tmp_path: Path) -> None:
    training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
    asked = plan_of(FedID(rounds=1), training=training, protection=ProtectionSettings())
    clinic = Clinic(tmp_path, asked, rules="max_values = 1000")
    with raises(CohortError, "(policy)", party="hospital-1"):
        clinic.run()
    refused = [event["why"] for event in clinic.events if "why" in event]
    assert len(refused) == 4 and all("site.max_values: asked for" in why for why in refused)
    assert not (tmp_path / "hospital-1" / "runs").exists()
    clinic.close()


# --- every setting of a plan is judged by a rule, or it is said why a coordinator may set it ----


# Fields that no rule reads, and why a coordinator may set them.
HARMLESS = {
    "run.seed": "draws order and initial weights, never keys or noise",
    "task.labels": "names of classes",
    "task.positive": "which score is shown",
    "task.max_length": "how much of a text is read",
    "task.windows": "how much of a text is read; it counts in max_batch",
    "task.overlap": "how much of a text is read twice",
    "task.prompt": "text of the plan, the same after each record",
    "task.label_words": "words of the plan, whose scores are the classes'",
    "task.score_range": "where bins of ranks lie, in sums of counts that are allowed",
    "model.layers": "of a model that is allowed",
    "model.pretrained": "of a model that is allowed",
    "model.pooling": "of a model that is allowed",
    "model.adapter.kind": "of a model that is allowed; it trains and sends less",
    "model.adapter.rank": "of a model that is allowed; it trains and sends less",
    "model.adapter.alpha": "of a model that is allowed; it trains and sends less",
    "model.adapter.targets": "of a model that is allowed; it trains and sends less",
    "model.adapter.dropout": "of a model that is allowed; it trains and sends less",
    "model.adapter.base": "how frozen weights are held",
    "model.adapter.last": "fewer layers of the adapters that are counted",
    "model.adapter.merge": "whether this site writes the whole model, too",
    "training.optimizer": "how well it learns",
    "training.learning_rate": "how well it learns",
    "training.schedule": "how well it learns",
    "training.warmup": "how well it learns",
    "training.weight_decay": "how well it learns",
    "training.accumulate": "steps of batches that are allowed",
    "training.class_weights": "how well it learns; the counts stay at the party",
    "training.bucketing": "which records share a batch",
    "training.checkpointing": "how it is computed",
    "training.probe_score": "a number that results are compared with",
    "training.patience": "when it ends, by sums that are allowed",
    "training.max_grad_norm": "how well it learns",
    "training.device": "where it is computed",
    "training.precision": "how it is computed",
    "training.threads": "how it is computed, with at most one thread per core",
    "training.dp.noise_multiplier": "its cost is accounted for by the ledger",
    "training.dp.max_grad_norm": "the noise grows with it",
    "training.dp.noise": "both kinds protect by the epsilon that is judged",
    "training.dp.dropouts": "with more, nothing is opened",
    "training.dp.accountant": "the ledger checks by both",
    "training.dp.clipping": "the same bound by another way",
    "protection.noise.std": "its cost is accounted for by the ledger",
    "protection.noise.dropouts": "with more, nothing is opened",
    "protection.noise.scale": "accounted for by the ledger",
    "protection.noise.force": "whether the result is of use",
}
LEARNING = set(  # how an algorithm learns, from sums that are protected all the same
    "server_learning_rate beta1 beta2 tau keep momentum masking k mutual "
    "soft_labels hidden tied adaptive transform joint_loss teacher_learning_rate "
    "energy_start energy_end max_rank mean counted sample host_learning_rate distill_learning_rate "
    "targets feedback_weight distill batches_per_exchange "
    "fresh_optimizers labelled temperature distance logit_bound widths shares weights mix "
    "server_optimizer linear_rate beta own_shares feedback_scale alone scaler "
    "fit components sample_rate teachers student_rank made_up proximal average damping "
    "weighted".split()
)
JUDGED = {
    "run.name", "run.folder", "run.record", "run.keep_checkpoints", "task.kind", "model.name",
    "model.freeze_embeddings",
    "training.batch_size", "training.pooled_scores", "training.dp.physical_batch",
    "training.dp.epsilon", "training.dp.delta", "training.dp.target_epsilon", "training.dp.unit",
    "training.dp.ledger", "training.dp.colluders",
    "protection.mode", "protection.bits", "protection.min_cohort",
    "protection.threshold", "protection.noise.epsilon", "protection.noise.delta",
    "protection.noise.target_epsilon", "protection.noise.colluders", "protection.noise.ledger",
    "dataset",
}  # fmt: skip


def leaves(cls: type[Section], at: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in cls.model_fields.items():
        if cls is Plan and name in places("settings"):
            continue  # judged by the tests of its feature
        inner = next((s for s in sections(field.annotation) if s is not Algorithm), None)
        if name != "algorithm":
            found |= leaves(inner, f"{at}{name}.") if inner else {f"{at}{name}"}
    return found


def test_a_new_setting_is_judged_or_said_to_be_harmless() -> None:
    assert leaves(Plan) == JUDGED | set(HARMLESS)
    judged = {"name", "rounds", "epochs", "steps", "distill_epochs", "factors", "feedback"}
    judged |= {"student_epochs", "public_batch", "feedback_batch", "exchange"}
    judged |= {
        "rows",
        "columns",
        "compression",
        "student_layers",
        "tiers",
        "values",
    }  # by `policy.size`
    judged |= {"models", "epsilon"}  # of what trains nothing: by name and digest, and by its rules
    judged |= {"variables", "tables", "survival", "delta"}  # of a codebook: by [site.statistics]
    judged |= {"min_patients", "records_per_patient"}
    judged |= {"values", "weighted", "sha256", "means_to_coordinator"}  # of a script
    for entry in ALGORITHMS.values():
        fields = entry.settings.model_fields
        assert set(fields) <= judged | LEARNING, entry.settings
        inner = [s for field in fields.values() for s in sections(field.annotation)]
        # No second model, no second ledger, out of the rules' sight: `reads` names those that are.
        assert entry.trains_nothing or inner == []
