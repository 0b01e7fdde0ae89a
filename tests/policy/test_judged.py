"""Every setting of a plan is judged by a rule, or it is said why a coordinator may set it."""

from __future__ import annotations

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.features import places
from secure_fl.field_errors import sections
from secure_fl.policy.rules import Plan
from secure_fl.settings import Section

# Fields that no rule reads, and why a coordinator may set them.
HARMLESS = {
    "run.seed": "draws order and initial weights, never keys or noise",
    "task.labels": "names of classes",
    "task.positive": "which score is shown",
    "task.max_length": "how much of a text is read",
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
    "training.patience": "when it ends, by sums that are allowed",
    "training.max_grad_norm": "how well it learns",
    "training.device": "where it is computed",
    "training.precision": "how it is computed",
    "training.threads": "how it is computed, with at most one thread per core",
    "training.dp.noise_multiplier": "its cost is accounted for by the ledger",
    "training.dp.max_grad_norm": "the noise grows with it",
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
    "server_optimizer linear_rate beta own_shares feedback_scale alone scaler".split()
)
JUDGED = {
    "run.name", "run.folder", "run.record", "run.keep_checkpoints", "task.kind", "model.name",
    "model.freeze_embeddings",
    "training.batch_size", "training.pooled_scores", "training.dp.physical_batch",
    "training.dp.epsilon", "training.dp.delta", "training.dp.target_epsilon", "training.dp.unit",
    "training.dp.ledger", "protection.mode", "protection.bits", "protection.min_cohort",
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
    judged |= {"public_batch", "feedback_batch", "exchange"}
    judged |= {"rows", "columns", "compression", "student_layers", "tiers"}  # by `policy.size`
    judged |= {"models"}  # by name and digest, of what trains nothing
    for entry in ALGORITHMS.values():
        fields = entry.settings.model_fields
        assert set(fields) <= judged | LEARNING, entry.settings
        inner = [s for field in fields.values() for s in sections(field.annotation)]
        # No second model, no second ledger, out of the rules' sight: `reads` names those that are.
        assert entry.trains_nothing or inner == []
