"""A model's README.md: what it learned from, how well, who was protected how, and where it is from.

It is written beside every model of a finished run, and anew when the model is pushed, with the
audit if there was one. Everything in it comes from the run's folder, and nothing of it is one
hospital's alone: scores are those over all hospitals' records, and counts are only told by a run
whose hospitals were all in one process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from secure_fl.data.rows import named
from secure_fl.display.figures import of_round
from secure_fl.display.learning_check import not_learned
from secure_fl.errors import RunError
from secure_fl.events import metric_name
from secure_fl.files import write_whole
from secure_fl.runs.folder import RESULT, SETTINGS

CARD, TASK, AUDIT = "README.md", "secure_fl.json", "audit.json"
PUBLIC, VERDICTS = "the public", ("holds", "leaks")  # as audit.json names them
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
ADAPTERS = "adapter_config.json"
PIPELINES = {
    "classification": "text-classification",
    "pair": "text-classification",
    "multilabel": "text-classification",
    "regression": "text-classification",
    "ner": "token-classification",
    "completion": "text-generation",
}
OWN = """\
This model is **one hospital's own**: it was not averaged with others', and can tell more about its
records than a shared one."""

STAYS = """\
## Protection

**Do not publish this model.** The run was under DP-SGD, which does not cover this model: it
learned from its hospital's records without noise.
"""

OWN_CODE = """\
Its head, attentive pooling, is code in this folder (attentive_pooling.py, heads.py). The lines
above use the installed package and run none of it. `transformers` runs it with
`trust_remote_code=True`: first compare the SHA-256 of both files and of the weights with those that
a hospital of the run gave you by another way. The digests below travel with the folder, so they
prove nothing alone.
"""


def write_cards(run: Path) -> None:
    """Write the card of every model of a finished run."""
    for pattern in (f"*/{TASK}", f"parties/*/*/{TASK}"):
        for task in run.glob(pattern):
            write_card(run, task.parent)


def write_card(run: Path, model: Path) -> None:
    """Write the card of one model of a finished run."""
    result, task = _read(run / RESULT), _read(model / TASK)
    own = model.parent != run
    parts = [
        _front(model, result, task),
        f"# {model.name}: {task['kind']}\n",
        _origin(result, own),
        _use(model, task),
        _data(result),
        _scores(result, model.name, own),
        STAYS if _stays(result, model, own) else _protection(run, result),
        _lineage(run, model, result),
    ]
    write_whole(model / CARD, "\n".join(parts))


def require_covered(run: Path, model: Path) -> None:
    """Refuse to publish a model that the differential privacy of its run does not cover."""
    if _stays(_read(run / RESULT), model, own=model.parent != run):
        raise RunError(
            "the run was under DP-SGD, which does not cover this model: it learned from its "
            "hospital's records without noise",
            fix="publish the shared model (without --party), or train without training.dp if the "
            "hospital may publish a model without differential privacy",
            file=model,
            reason="not-covered",
        )


def _stays(result: Mapping[str, Any], model: Path, own: bool) -> bool:
    """True if differential privacy does not cover this model of a run under DP-SGD."""
    return own and model.name in (result.get("stays") or ())


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            "a model's card needs the result of its finished run",
            fix="name a run that is finished, or finish it with --resume",
            file=file,
            reason="missing",
        ) from error
    return found


def _front(model: Path, result: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    """Return the metadata for hubs, without paths of a hospital's machine."""
    tags = ["federated-learning", "secure-fl", str(result["algorithm"])]
    tags += ["differential-privacy"] if result["privacy"] or result["noise"] else []
    lines = ["library_name: " + ("peft" if (model / ADAPTERS).exists() else "transformers")]
    if task["kind"] in PIPELINES:
        kind = "fill-mask" if "prompt" in task else PIPELINES[task["kind"]]
        lines.append(f"pipeline_tag: {kind}")
    if _base(result) and "/" in _base(result):
        lines.append(f"base_model: {_base(result)}")
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---", ""])


def _base(result: Mapping[str, Any]) -> str:
    """The checkpoint's name if it is one that others know; empty: it was a folder here."""
    name = str(result["model"]["name"])
    return name if HUB_NAME.fullmatch(name) and not Path(name).exists() else ""


def _origin(result: Mapping[str, Any], own: bool) -> str:
    layers = result["model"]["layers"]
    cut = f", cut to its first {layers} layers" if layers else ""
    said = (
        f"Trained by {result['protection']['parties']} hospitals with `{result['algorithm']}` in "
        f"{result['rounds']} rounds, from `{_base(result) or 'a checkpoint in a folder'}`{cut}. No "
        "record left its hospital."
    )
    return f"{said}\n\n{OWN}\n" if own else f"{said}\n"


def _use(model: Path, task: Mapping[str, Any]) -> str:
    """How to ask it; what is not plain transformers is said."""
    kind = task["kind"]
    ours = "```python\nfrom secure_fl.learning.exporting import load_exported\n\n"
    ours += 'model, tokenizer, task = load_exported("THIS FOLDER")\n```\n'
    if (model / ADAPTERS).exists():
        return f"## Use\n\nAdapters for `peft`, around their base; merged, by ours:\n\n{ours}"
    if kind not in PIPELINES:
        return f"## Use\n\nThe ranker is ours; `AutoModel` loads the body alone.\n\n{ours}"
    without = "what completes a prompt" if kind == "completion" else "a score"
    labels = named([f"`{label}`" for label in task["labels"]]) if task["labels"] else without
    reads = f"texts are cut to {task['max_length']} tokens"
    if (windows := task.get("windows", 1)) > 1:
        reads = (
            f"`load_exported` reads long texts in up to {windows} windows of {task['max_length']} "
            "tokens, and a pipeline one window"
        )
    answers = f"It answers {labels}; {reads}.\n"
    if task["pooling"] == "attentive":
        return f"## Use\n\n{ours}\n{OWN_CODE}\n{answers}"
    if "prompt" in task:
        words = ", ".join(f"`{word}` is {label}" for label, word in task["label_words"].items())
        return (
            f'## Use\n\n{ours}\n{answers}\nIt is a masked language model. `pipeline("fill-mask")` '
            f"answers the same for a text and the prompt `{task['prompt']}`: {words}.\n"
        )
    options = ", top_k=None" if kind == "multilabel" else ""
    if PIPELINES[kind] == "text-classification":  # saved tokenizers have the model's own limit
        options += f", truncation=True, max_length={task['max_length']}"
    return (
        "## Use\n\n```python\nfrom transformers import pipeline\n\n"
        f'ask = pipeline("{PIPELINES[kind]}", model="THIS FOLDER"{options})\n```\n\n{answers}'
    )


def _data(result: Mapping[str, Any]) -> str:
    if not result["records"]:
        return "## Data\n\nHow many records a hospital has stays with it: only sums were opened.\n"
    counts = ", ".join(f"{count} {split}" for split, count in result["records"].items())
    return f"## Data\n\nRecords of all hospitals together: {counts}.\n"


def _scores(result: Mapping[str, Any], name: str, own: bool) -> str:
    """The delivered round's scores over all hospitals' test records."""
    delivered = of_round(result, "delivered")
    pooled = delivered.get("pooled", {})
    found = pooled.get(f"{name}/test") or (pooled.get("test") if name == "model" else None)
    if not found:
        return "## Scores\n\nNone over all hospitals' records: each measured on its own.\n"
    whose = ", each read by its hospital's own model" if own or result["local_heads"] else ""
    named = {metric_name(name, result.get("scored_class")): x for name, x in found.items()}
    rows = [f"| {name} | {value:.4f} |" for name, value in named.items()]
    said = "## Scores\n\nOver all hospitals' test records together"
    said += f"{whose}, after round {delivered['round']}:\n"
    prefix = f"{name}/" if f"{name}/test" in pooled else ""
    problem = not_learned(result, prefix, pooled=True)
    warning = [] if problem is None else [f"**{problem}**\n"]
    return "\n".join([said, *warning, "| metric | |", "| --- | --- |", *rows, ""])


def _protection(run: Path, result: Mapping[str, Any]) -> str:
    protection, dp, noise = (result[name] for name in ("protection", "privacy", "noise"))
    said = [f"Updates were summed under `{protection['mode']}`. {protection['statement']}".strip()]
    if dp:
        loss = dp["overall_epsilon"]  # None: it ran on no records of somebody who is told of here
        said.append(
            f"DP-SGD protects each {dp['unit']}: "
            f"{'ε without a bound' if loss is None else f'ε = {loss:.2f}'} at "
            f"δ = {dp['delta']:g} ({dp['adjacency']}). It assumes: {dp['assumes']}."
        )
        if dp.get("noise") == "shared" and loss is not None:
            said.append(f"Towards readers of this model alone, ε is {dp['model']:.2f}.")
    if noise:
        said.append(f"Sums of predictions were noised ({noise['unit']} as the unit).")
    if not dp and not noise:
        said.append("No differential privacy: the model may remember records (see the audit).")
    said.append(_audit(run))
    return "## Protection\n\n" + "\n\n".join(said) + "\n"


def _audit(run: Path) -> str:
    """The audit's status, with counts alone: its reasons and targets name hospitals."""
    if not (run / AUDIT).exists():
        return "It was not audited."
    found = _read(run / AUDIT)
    verdicts = [trial["verdict"] for trial in found["trials"]]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts)))
    said = f"Audit: **{found['status']}** ({counts})."
    if number := len(found["reasons"]):
        said += f" Its report has {number} reason{'s' * (number > 1)}."
    attacked = any(t["role"] == PUBLIC and t["verdict"] in VERDICTS for t in found["trials"])
    return said if attacked else f"{said} No attack on the released model came to a verdict."


def _lineage(run: Path, model: Path, result: Mapping[str, Any]) -> str:
    """Names and digests by which this model is tied to its run."""
    rows = {"run": run.resolve().name, "seed": result["seed"]}
    if result["roster"]:
        rows["roster"] = result["roster"]
    files = (*sorted(model.rglob("*.safetensors")), *sorted(model.glob("*.py")))
    for file in (run / SETTINGS, run / RESULT, *files):
        if file.exists():
            name = file.relative_to(model) if file.is_relative_to(model) else file.name
            rows[f"sha256 of {name}"] = digest(file)
    versions = result["versions"]
    rows["made with"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["## Lineage", "", "| | |", "| --- | --- |", *lines, ""])


def digest(file: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    state = sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            state.update(piece)
    return state.hexdigest()
