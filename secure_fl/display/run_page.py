"""A run as a page: how it learned, what it cost, what it spent of privacy, who was there.

Figures of a single hospital are those that lie in the folder anyway; `shared=True` leaves them out,
so that the page can be handed on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secure_fl.display.charts import Curve, chart
from secure_fl.display.figures import duration, metric_of, number, size, traffic
from secure_fl.display.html import code, folded, page, paragraph, section, table
from secure_fl.display.result_tables import (
    approved,
    convicted,
    entity_table,
    noise_line,
    result_table,
    score_line,
)
from secure_fl.display.run_history import RunHistory, by_class, confusion, read_run_history
from secure_fl.events import Event, RoundSaved, RoundStarted
from secure_fl.features import places, resolve
from secure_fl.files import write_again

log = logging.getLogger(__name__)
PAGE = "report.html"
FLOAT32 = 4  # bytes
MANY = 6  # hospitals whose curves have names
AGAIN = 10  # seconds between two readings of a page that still changes
OTHERWISE = {"-": "nothing was shared", "POOLED": "all records in one place", "NONE": "unprotected"}


def write_run_page(folder: Path, *, shared: bool = False) -> Path:
    """Write the page of a run's folder, whole or not at all."""
    file = folder / PAGE
    story = read_run_history(folder)
    own = (page for section, page in places("pages").items() if story.document.get(section))
    if (page := next(own, None)) is not None:
        whole = resolve(page)(story.document, shared=shared)
    else:
        whole = run_page(story, shared=shared)
    write_again(file, whole)
    return file


class PageWriter:
    """Writes a run's page after rounds, but never spends more than a tenth of the time on it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._due = folder, 0.0

    def __call__(self, event: Event) -> None:
        """Write the page after a round, if it is due."""
        now = time.monotonic()
        if not isinstance(event, RoundStarted | RoundSaved) or now < self._due:
            return
        self.write()
        spent = time.monotonic() - now
        self._due = now + max(AGAIN / 2, 10 * spent)

    def write(self) -> None:
        """Write it now, if that can be: secure-fl report can write it again."""
        try:
            write_run_page(self._folder)
        except OSError:
            pass  # the run's own files tell of a full disk; a page can wait
        except Exception:  # a fault of the page must not end a run, which is worth more
            log.warning("the run goes on without its page, %s", PAGE, exc_info=True)


def run_page(story: RunHistory, *, shared: bool = False) -> str:
    """The page of one run."""
    body = article(story, "run1", shared=shared)
    names = {"score": "Learning", "cost": "Cost", "privacy": "Privacy", "who": "Who was there"}
    links = {f"run1-{at}": text for at, text in (names | {"set": "Settings"}).items()}
    links = {at: text for at, text in links.items() if f'id="{at}"' in body}
    again = 0 if story.document else AGAIN
    return page(story.name, "A federated training run", links, body, again)


def article(story: RunHistory, at: str, *, shared: bool = False, level: int = 3) -> str:
    """All that is said of one run."""
    parts = [
        _short(story, alone=level == 3),
        paragraph(convicted({"convicted": story.convicted}), "alarm"),
        paragraph("" if shared else approved(story.document)),
        section(f"{at}-score", "How it learned", _learning(story, at, shared), level),
        section(f"{at}-class", "What it gets right", _classes(story, shared), level),
        section(f"{at}-cost", "What it cost", _cost(story, at, shared), level),
        section(
            f"{at}-privacy", "What was spent of privacy", _privacy(story.document, shared), level
        ),
        section(f"{at}-who", "Who was there", _presence(story, at), level),
        section(f"{at}-set", "Settings and versions", _settings(story), level),
    ]
    return "".join(parts)


def _short(story: RunHistory, *, alone: bool) -> str:
    """What ran; `alone`: no audit stands above it, which says how it was protected."""
    document, metric = story.document, story.metric
    count = document.get("protection", {}).get("parties") or len(story.parties)
    who = f"{count} hospitals" if count else "hospitals"
    if document.get("roster") and len(story.parties) == 1:
        who += f", as {story.parties[0]} sees it"
    how = OTHERWISE.get(story.protection, f"protection {story.protection}")
    said = [paragraph(f"{story.algorithm} over {who}, {story.status}, {how}.", "lead")]
    clear = story.protection == "NONE"
    if clear and alone:
        warn = "Unprotected: the coordinator could read every hospital's update."
        said.append(paragraph(warn, "alarm"))
    if not document:
        said.append(paragraph("The run goes on, or was stopped; this page is written as it goes."))
        return "".join(said)
    said.append(paragraph(_reached(document, metric)))
    if alone and not clear:
        said.append(paragraph(str(document.get("protection", {}).get("statement", ""))))
    return "".join(said)


def _reached(document: Mapping[str, Any], metric: str) -> str:
    """The scores of the last round, and of the one whose dev score was best."""
    last, best = (document.get("metrics", {}).get(which, {}) for which in ("last", "best"))
    score, other = (metric_of(document, which, "test") for which in ("last", "best"))
    if score is None:
        return ""
    over = "all records" if last.get("pooled") else "the hospitals' mean"
    said = score_line(document) or f"test {metric} {number(score)} ({over})"
    same = best["round"] == last["round"]
    best_one = "no round's dev score was better"
    if not same:
        best_one = f"after round {best['round']}, whose dev score was best, {number(other)}"
    return f"After round {last['round']}: {said}; {best_one}. {_which(document)}"


def _which(document: Mapping[str, Any]) -> str:
    """Which round the model in the folder is of."""
    held = document.get("model_round")
    return f"What was learned up to round {held} is kept." if held else ""


def _learning(story: RunHistory, at: str, shared: bool) -> str:
    metric = story.metric
    if any(story.curve(split) for split in ("dev", "test")):
        main = [Curve(f"all {s} records", story.curve(s)) for s in ("dev", "test")]
    else:
        main = [Curve(f"mean over hospitals, {s}", story.mean(s)) for s in ("dev", "test")]
    own = [] if shared else [_own(story, name, metric) for name in story.own]
    many = len(own) > MANY
    curves = [*main, *(curve._replace(faint=many) for curve in own)]
    losses = [
        Curve("training", story.losses()),
        Curve("all dev records", story.curve("dev", "loss") or story.mean("dev", "loss")),
        Curve("all test records", story.curve("test", "loss") or story.mean("test", "loss")),
    ]
    drawn = chart(f"{at}-curve", curves, "round", f"Score over rounds ({metric})", number)
    drawn += chart(f"{at}-loss", losses, "round", "Loss over rounds", number)
    return drawn + paragraph(_rates(story))


def _own(story: RunHistory, name: str, metric: str) -> Curve:
    return Curve(f"{name}, dev", story.curve("dev", metric, name))


def _rates(story: RunHistory) -> str:
    training = story.settings.get("training", {})
    if not training:
        return ""
    rate, schedule = training.get("learning_rate"), training.get("schedule", "linear")
    rate = "by each model's width" if rate in (None, "none") else rate
    warmup = training.get("warmup", "none")
    warmup = (0.1 if schedule == "linear" else 0.0) if warmup == "none" else float(warmup)
    how = "linearly down to 0 at the run's end" if schedule == "linear" else "constant"
    rise = f"rising over the first {100 * warmup:g} % of the run, then " if warmup else ""
    epochs = story.settings.get("algorithm", {}).get("epochs", 1)
    return (
        f"Learning rate {rate} ({training.get('optimizer')}), {rise}{how}; batches of "
        f"{training.get('batch_size')}; {epochs} local pass{'es' * (epochs != 1)} in each round."
    )


def _classes(story: RunHistory, shared: bool) -> str:
    document = story.document
    kind = document.get("task", {}).get("kind")
    found = by_class(document) or {}
    body = ""
    if kind in ("classification", "pair") and (square := confusion(document)) is not None:
        names, cells = square
        rows = [[f"truly {name}", *map(str, row)] for name, row in zip(names, cells, strict=True)]
        heads = ["", *(f"taken for {name}" for name in names)]
        body += table("Test records of all hospitals, last round", heads, rows)
    rows = [
        [
            name,
            _share(hits, hits + false),
            _share(hits, hits + missed),
            _share(2 * hits, 2 * hits + false + missed),
            f"{hits + missed:.0f}",
        ]
        for name, (hits, false, missed) in sorted(found.items())
    ]
    what = "Entities" if kind == "ner" else "Classes"
    heads = [what, "precision", "recall", "F1", "in the test records"]
    body += table(f"{what} of all hospitals' test records, last round", heads, rows)
    entities = None if shared else entity_table(document)
    if entities is not None:
        body += table(f"Hospital by hospital, {entities.title}", entities.columns, entities.rows)
    return body


def _share(part: float, whole: float) -> str:
    return number(part / whole) if whole else "-"


def _cost(story: RunHistory, at: str, shared: bool) -> str:
    up = [(float(n), float(b)) for n, b in sorted(story.up.items())]
    down = [(float(n), float(b)) for n, b in sorted(story.down.items())]
    curves = [Curve("from hospitals", up), Curve("to hospitals", down)]
    body = chart(
        f"{at}-bytes", curves, "round", "Bytes of all hospitals in a round", size, from_zero=True
    )
    spent = [Curve("a round", story.seconds)]
    body += chart(
        f"{at}-seconds", spent, "round", "Seconds that a round took", duration, from_zero=True
    )
    body += paragraph(cost_beside_float32(story.document))
    if not story.document:
        return body
    if not shared and "metrics" in story.document:
        grid = result_table(story.document)
        body += table("Hospital by hospital", grid.columns, grid.rows)
    elif not shared:  # a coordinator's
        ways = [(name, traffic(story.document, name)) for name in story.parties]
        rows = [[name, size(up), size(down)] for name, (up, down) in ways]
        body += table("Hospital by hospital", ["hospital", "sent", "received"], rows)
    seconds = story.document.get("seconds", {})
    phases: dict[str, float] = {}
    for found in seconds.get("party", {}).values():
        for phase, value in found.items():
            phases[phase] = phases.get(phase, 0.0) + value
    for phase, value in seconds.get("coordinator", {}).items():
        if phase != "run":
            phases[f"coordinator: {phase}"] = value
    rows = [[name, duration(value)] for name, value in sorted(phases.items(), key=lambda p: -p[1])]
    body += table("Seconds by phase, over all hospitals", ["phase", "spent"], rows)
    if "privacy_share" in seconds:
        share = f"{100 * seconds['privacy_share']:.1f} %"
        body += paragraph(f"Protecting sums took {share} of the rounds' time.")
    return body


def cost_beside_float32(document: Mapping[str, Any]) -> str:
    """What this run sent, beside plain FedAvg of the whole model in float32."""
    values, parties = document.get("values"), len(document.get("parties", ()))
    last = document.get("metrics", {}).get("last", {}).get("round") or document.get("rounds")
    up, _ = traffic(document)
    if not values or not parties or not last or not up:
        return ""
    plain = FLOAT32 * values * parties * last
    return (
        f"Hospitals sent {size(up)} in {last} rounds. FedAvg of all {values:,} trained values in "
        f"float32, unprotected, would have sent {size(plain)}: this is {_percent(up / plain)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share > 0.01 else "less than 1 %"


def _figure(value: float | None) -> str:
    """A number in four digits; a party whose training another mechanism covers has none."""
    return "-" if value is None else f"{value:.4g}"


def _privacy(document: Mapping[str, Any], shared: bool) -> str:
    body = ""
    if privacy := document.get("privacy"):
        said = _dp(privacy)
        body += paragraph(f"DP-SGD: {said}, of a budget of {privacy['budget']:g}.")
        if missing := ", ".join(privacy.get("uncovered", ())):
            body += paragraph(f"Nothing is promised for the records of {missing}.", "alarm")
        names = ("epsilon", "epsilon_of_this_run", "noise_multiplier", "sample_rate", "steps")
        rows = [
            [party, *(_figure(privacy[name][party]) for name in names)]
            for party in ({} if shared else privacy["epsilon"])
        ]
        body += table("Hospital by hospital", ["hospital", *map(_words, names)], rows)
        body += paragraph(f"This holds if {privacy['assumes']}.")
    if (noise := noise_line(document)) is not None:
        body += paragraph(noise)
    if not body and "metrics" in document:  # a coordinator knows of none
        body = paragraph(
            "Nothing: there was no differential privacy. Sums hide contributions; what the trained "
            "model itself tells of its records is not bounded."
        )
    return body


def _dp(privacy: Mapping[str, Any]) -> str:
    loss = privacy["overall_epsilon"]
    spent = "ε without a bound" if loss is None else f"ε = {loss:.3f}"
    return f"{spent} at δ = {privacy['delta']:g} per {privacy['unit']}"


def _words(name: str) -> str:
    return name.replace("_", " ").replace("epsilon", "ε")


def _presence(story: RunHistory, at: str) -> str:
    members = [(float(n), float(count)) for n, count in sorted(story.here.items())]
    body = paragraph(", ".join(story.parties))
    if len({count for _, count in members}) > 1:
        curve = [Curve("members", members)]
        body += chart(
            f"{at}-members",
            curve,
            "round",
            "Members in a round",
            lambda v: f"{v:.0f}",
            from_zero=True,
        )
    elif members:
        body += paragraph(f"All {members[0][1]:.0f} members were there in every round.")
    return body + "".join(paragraph(note) for note in story.notes[-20:])


def _settings(story: RunHistory) -> str:
    versions = story.document.get("versions", {})
    rows = [[name, str(value)] for name, value in versions.items()]
    body = paragraph(f"Seed {story.settings.get('run', {}).get('seed', 0)}.")
    body += folded("Versions", table("Versions", ["package", "version"], rows, figures=False))
    return body + folded("All settings, as resolved", code(story.text, "Settings"))
