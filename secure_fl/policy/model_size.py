"""Compares the size of a plan's models with the site's limit.

Asked after `rules.check`: only then has the site allowed the name, whose shape is looked up
here, in a folder, the local cache or the hub. No weight is loaded or drawn for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl.policy.plan import Plan
from secure_fl.policy.rules import PolicyRefusal, Violation
from secure_fl.policy.site_rules import site_rules

if TYPE_CHECKING:
    from secure_fl.policy.policy_file import SitePolicy
    from secure_fl.settings import ModelSettings


_DEPTHS = (None, 1, 2, 3, 4)
_COUNTED = {"name", "layers", "pretrained", "freeze_embeddings", "pooling"}
BUILT_IN = 250_000  # the built-in model has fewer values, with all its layers and embeddings


def check_size(policy: SitePolicy, plan: Plan, me: str) -> None:
    """Raise PolicyRefusal if more values would be trained, or sketched, than this site allows."""
    if _surely_allowed(plan, policy.max_values):
        return
    asked, most = values_asked(plan), policy.max_values
    if asked > most:
        fix = f"set max_values = {asked} in [site], if the machine has memory for about 16 bytes of"
        broken = Violation("site.max_values", f"{asked}", f"{most} or less", f"{fix} each")
        raise PolicyRefusal((broken,), party=me)


def _surely_allowed(plan: Plan, most: int) -> bool:
    """Compare a bound instead of the exact size, because the exact size needs the libraries."""
    models = (*plan.algorithm.trains(plan.model), *_later(plan))
    if not all(model.name == "tiny" and model.layers in _DEPTHS for model in models):
        return False
    if any(model.model_fields_set - _COUNTED for model in models):
        return False  # other fields add parts to the model
    bound = BUILT_IN * len(models)
    return max(bound, plan.algorithm.demands(plan.training, bound).cells) <= most


def values_asked(plan: Plan) -> int:
    """The values of all models that are trained at once, or those of a sum if these are more."""
    values = sum(map(trained_values, plan.algorithm.trains(plan.model)))
    later = map(trained_values, _later(plan))
    return max(values, plan.algorithm.demands(plan.training, values).cells, *later)


def _later(plan: Plan) -> list[ModelSettings]:
    """Return the models that features train after the plan's own."""
    return [model for rules in site_rules() for model in rules.trains(plan)]


def trained_values(spec: ModelSettings) -> int:
    """How many values of the encoder are trained; a head has few."""
    import torch
    import transformers

    from secure_fl.learning.anatomy import freeze_embeddings, trainable
    from secure_fl.learning.fetching import configured, supported
    from secure_fl.learning.models import add_parts, load_tokenizer

    tokenizer = load_tokenizer(spec) if spec.name == "tiny" else None
    config = configured(spec, tokenizer, {})
    attention = supported(transformers.AutoModel, config, "sdpa")
    with torch.device("meta"):  # shapes without memory
        encoder = transformers.AutoModel.from_config(config, attn_implementation=attention)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # as in `models`: nothing would train it
    if spec.freeze_embeddings:
        freeze_embeddings(encoder)
    with torch.device("meta"):
        add_parts(encoder, spec, seed=0, fresh=())
    return sum(values.numel() for values in trainable(encoder).values())
