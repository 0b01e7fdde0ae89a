"""The fields of result.json in words: the source of the page of its schema."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

HEAD = """\
# `result.json`

A run writes this file once, when it has finished. Later versions add fields and rename none.

- `secure-fl/result/1`: the result of a run in one process, or of one hospital in a pilot.
- `secure-fl/lead/1`: a coordinator's record of a pilot: rounds, bytes, seconds, the roster's
  fingerprint and the convicted members. It contains no scores.
- `secure-fl/demo/2`: the demo's summary of its four runs and their audits.

A split is `train`, `dev` or `test`. If a party has several models, a split is named `model/split`.
"""

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "schema": "`secure-fl/result/1`",
        "status": "`finished`",
        "algorithm": "name of the algorithm",
        "algorithm_settings": "settings of the algorithm, defaults included",
        "task": "settings of the task",
        "model": "settings of the model",
        "protection": "mode, bits, `min_cohort`, `threshold`, number of `parties`, "
        "`collusion_bound` {`honest_coordinator`, `lying_coordinator`}, and `statement`, the "
        "bound in sentences",
        "differing_sums": "changes of one party between consecutive sums of the same names: "
        "`round`, `party`, `change` (`left` or `joined`), and `sums`, the number of such pairs",
        "parties": "names of the parties whose results these are",
        "seed": "seed of the run",
        "rounds": "rounds of the algorithm",
        "records": "split → records of all parties together; `null` with noise on scores, and in "
        "a pilot, where a hospital's count is not shared",
        "roster": "fingerprint of the roster; `null` in one process",
        "approvals": "in a pilot whose site requires approvals: {`who`, `fingerprint`, `time`, "
        "`plan`, `rules`, `programs`}; the last three are digests",
        "convicted": "in a pilot: members found to have spoiled a sum; the evidence is in "
        "`parties/*/evidence`",
        "main_metric": "metric that selects the best round; higher is better",
        "scored_class": "the class of precision, recall and f1 (task.positive, else the last "
        "label); null if they are not scores of one class",
        "probe": "dev score of a probe by `training.probe_score`; `null` if unknown",
        "local_heads": "`true` if label sets differ, so that each party keeps its own output layer",
        "metrics": "`last` and `best`, each {`round`, `pooled`, `mean`, `party`, `counts`, "
        "`intervals`, `bounds`}; see below",
        "use": "the model to use if there are several: the best by the pooled dev metric. "
        "`predict` uses it",
        "history": "every measurement: party, round, split, metrics",
        "model_round": "round of the delivered models; with `training.patience` the best round",
        "values": "number of trained values of a party's largest model",
        "layers": "`null` without tiers of depth; else for each `part` of the models `sums`, the "
        "groups of parties over which it is summed, and `stay`, the parties that keep their own",
        "bytes": "party → {`up`, `down`}: bytes on its connection, message heads and signatures "
        "included",
        "seconds": "`total`, and party → phase → seconds (`tokenise`, `load model`, `train`, "
        "`evaluate`, `seal`, `unmask`, `open`, `checkpoint`). In one process also the "
        "`coordinator`'s, and `privacy_share`: time of sealing, unmasking, opening and adding "
        "as a fraction of the rounds' time",
        "privacy": "`null` without DP-SGD; else unit, adjacency, ε of each party and overall, δ, "
        "accountant, and `uncovered`: members whose records DP-SGD does not cover. `members`: ε "
        "towards the other hospitals; `model`: ε towards readers of the model alone; `shared`: "
        "the hospitals, dropouts and colluders of shared noise, with ε by number of colluders",
        "noise": "`null` without noise on sums of predictions; else unit (a hospital), adjacency, "
        "mechanism, ε of the account and of this run, δ, budget, guaranteed and real noise, "
        "signal, released sums, tolerated dropouts and colluders, kind of ledger, assumptions",
        "guard": "`null` without `[guard]`; else its `settings`, the `refused` rounds, and the "
        "parties `left_out` by a search",
        "personal": "`null` without `[personal]`; else its `settings`, `votes` {`better`, `worse`, "
        "`undecided`} or the reason for `no_votes`, the pooled `temperatures` and "
        "`thresholds`, and `party` → {`use`, "
        "`vote`, `problem`, `dev` and `test` scores of each model, `differences` (split "
        "→ pair of models) with 95 % intervals, `temperature` {`pooled`, `own`, `weight`, "
        "`test_loss`}, `threshold` {`pooled`, `own`, `weight`, `test_coverage`}}",
        "serves": "`null`, or party → folder of the model that this hospital serves",
        "answers": "`null`, or party → {`temperature`, `threshold`} of the model that this "
        "hospital serves; `predict --party` uses them",
        "stays": "`null`, or the names of models that must stay at their hospital, because DP-SGD "
        "does not cover them",
        "evaluation": "`null` without an evaluation; else its models, scores and differences",
        "statistics": "`null` without a codebook; else its status and released tables",
        "versions": "versions of Python and of the packages",
        "machine": "system, processor, cores, threads of torch, GPU",
    }
)

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "round": "number of the round. `last` is the last one; `best` has the best pooled dev "
        "metric, or the best mean where no metric is pooled",
        "pooled": "split → metric → value over the records of all hospitals. In a pilot it comes "
        "from sealed sums of counts, and is empty without them",
        "mean": "split → metric → mean of the parties that have a value",
        "party": "party → split → metric → value",
        "counts": "split → the sums that the pooled metrics are computed from",
        "intervals": "split → metric → [low, high], 95 %",
        "bounds": "split → metric → [lowest, highest] value of a metric that is computed from "
        "binned scores",
    }
)

TAIL = """\
Spearman's correlation needs `task.score_range`. Entities have `precision`, `recall` and `f1` over
all types (seqeval, strict IOB2), and `f1/TYPE` of each type that occurs in the split.
"""


def page() -> str:
    """Return the description of result.json as Markdown."""
    metrics = f"## `metrics.last` and `metrics.best`\n\n{_table(METRICS)}"
    return "\n".join([HEAD, _table(FIELDS), metrics, TAIL])


def _table(fields: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {text} |" for name, text in fields.items()]
    return "\n".join(["| field | content |", "| --- | --- |", *rows]) + "\n"
