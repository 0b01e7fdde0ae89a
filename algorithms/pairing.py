"""A party's teacher beside the student that all parties share: made, and checked to fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torch import nn

from secure_fl.algorithms.distillation import Pair
from secure_fl.errors import ModelError, SettingsError
from secure_fl.learning.anatomy import begin_with, body_of, depth, repeats
from secure_fl.learning.fetching import Attention, configured
from secure_fl.learning.learning_rates import learning_rate_of
from secure_fl.learning.models import load_tokenizer
from secure_fl.learning.site import Site
from secure_fl.learning.tasks.task import inference

if TYPE_CHECKING:
    from secure_fl.algorithms.fedkd import FedKD


def make_pair(site: Site, cfg: FedKD) -> Pair:
    """The site's teacher, and the student: the first layers of the model that all share."""
    if site.training.dp is not None and cfg.adaptive == "batch":
        raise SettingsError(
            "weights taken from a whole batch let its records touch each other, and no ε holds",
            fix='set algorithm.adaptive = "sample" (or "none") with training.dp',
            party=site.name,
            field="algorithm.adaptive",
        )
    if site.training.dp is not None and cfg.exchange == "gradient":
        raise SettingsError(
            "DP-SGD accounts for whole passes over the records, not for gradients exchanged apart",
            fix='set algorithm.exchange = "epoch" with training.dp',
            party=site.name,
            field="algorithm.exchange",
        )
    require_tokens(site)
    if tied := cfg.tied and one_model(site):
        cfg = cfg.model_copy(update={"hidden": False})  # a network would be compared with itself
    attention: Attention = "maps" if cfg.hidden else "sdpa"
    teacher, settings = site.model(attention=attention), site.shared_model_settings
    if site.model_settings == settings and cfg.student_layers > depth(teacher):
        raise SettingsError(
            f"the student is to have {cfg.student_layers} encoder layers, its teacher has "
            f"{depth(teacher)}: a student is its teacher's first layers",
            fix=f"set algorithm.student_layers to 1 to {depth(teacher)}",
            field="algorithm.student_layers",
        )
    student = site.model(cfg.student(settings), attention=attention)
    require_prefix(site, student, teacher, cfg)
    if cfg.hidden:
        require_maps(site, student, teacher)
    if tied:
        begin_with(teacher, student)
    η = learning_rate_of(student, site.training)
    return Pair(teacher, student, site.task, cfg, (cfg.teacher_learning_rate or η / 4, η))


def one_model(site: Site) -> bool:
    """Whether this party's teacher begins as the shared model does, whatever its depth."""
    own, shared = site.model_settings, site.shared_model_settings
    same = own.model_copy(update={"layers": shared.layers}) == shared
    return same and not repeats(configured(own, site.tokenizer, {}))


def require_tokens(site: Site) -> None:
    """Refuse a teacher that reads other tokens: one batch serves both models."""
    shared = site.shared_model_settings
    if site.model_settings.name == shared.name:
        return
    if load_tokenizer(shared).get_vocab() != site.tokenizer.get_vocab():
        raise ModelError(
            "this party's teacher has another vocabulary than the shared student: one batch of "
            "tokens must serve both",
            fix="give the party a teacher with the shared model's tokenizer",
            party=site.name,
            field="model",
        )


def require_prefix(site: Site, student: nn.Module, teacher: nn.Module, cfg: FedKD) -> None:
    """Refuse a teacher that its student cannot be laid beside, and say why."""
    if site.model_settings == site.shared_model_settings:
        return
    s, t = body_of(student).config, body_of(teacher).config
    wanted = ["num_attention_heads", *([] if cfg.transform else ["hidden_size"])]
    for name in wanted if cfg.hidden else ():
        mine, theirs = getattr(t, name), getattr(s, name)
        if mine != theirs:
            raise ModelError(
                f"this party's teacher has {name} {mine}, the shared student {theirs}: the student "
                "must be made of the teacher's first layers, or of a model like it",
                fix="use the same checkpoint (any depth), or set algorithm.hidden = false",
                party=site.name,
                field="model",
            )
    if depth(student) > depth(teacher):
        raise ModelError(
            f"the student has {depth(student)} layers, this party's teacher {depth(teacher)}",
            fix="give the party a deeper teacher, or lower algorithm.student_layers",
            party=site.name,
            field="algorithm.student_layers",
        )


def require_maps(site: Site, *models: nn.Module) -> None:
    """Refuse models that do not show how every token attends to every other, by one record."""
    batch = site.train.batch([0], None, site.device)
    tokens = batch["input_ids"].shape[1]
    for model in models:
        with inference(model):
            out = site.task.outputs(model, batch, output_attentions=True, output_hidden_states=True)
        maps, states = out.attentions or (), out.hidden_states or ()
        whole = all(one is not None and one.shape[-2:] == (tokens, tokens) for one in maps)
        if len(maps) != depth(model) or len(states) <= depth(model) or not whole:
            raise ModelError(
                "this model does not show a map of attention from every token to every token, and "
                "the student is to imitate its teacher's",
                fix="set algorithm.hidden = false, or choose another model",
                model=type(model).__name__,
                field="algorithm.hidden",
            )


def shared_fingerprint(site: Site, cfg: FedKD) -> bytes:
    """What all parties must have in common: task, student and method, not the teachers."""
    task, shared = site.task, site.shared_model_settings.model_dump(mode="json")
    labels = [] if site.local_head else list(task.labels)
    common = [task.kind, labels, task.max_length, shared, cfg.model_dump(mode="json")]
    return json.dumps(common).encode()
