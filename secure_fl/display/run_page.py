"""Page of a run: scores, costs, spent privacy and members.

It shows the single-hospital figures that are in the folder; `shared=True` omits them, and means
over fewer than three hospitals, so that the page can be sent to others.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from secure_fl.display.charts import Curve, chart
from secure_fl.display.figures import counted, duration, metric_of, number, of_round, size, traffic
from secure_fl.display.html import code, folded, page, paragraph, section, table
from secure_fl.display.result_tables import (
    approved,
    convicted,
    entity_table,
    layers_table,
    noise_line,
    result_table,
    score_line,
)
from secure_fl.display.run_history import (
    RunHistory,
    by_class,
    confusion,
    read_run_history,
    shareable,
)
from secure_fl.events import Event, RoundSaved, RoundStarted
from secure_fl.features import places, resolve
from secure_fl.files import write_again

log = logging.getLogger(__name__)
PAGE = "report.html"
FLOAT32 = 4  # bytes
MANY = 6  # hospitals with named curves
MOST_SHOWN = 100  # labels in a table
FEWEST = 3  # rounds that need a picture, which takes longer to draw than all else of the page
AGAIN = 10  # seconds after which a browser reloads the page of an unfinished run
PROTECTIONS = {
    "-": "Nothing was shared",
    "POOLED": "All records were in one place",
    "NONE": "No protection",
    "secagg": "Protection: masks",
    "he+secagg": "Protection: encryption and masks",
}
ACCOUNTS = {"privacy": "DP-SGD", "noise": "Noise on predictions"}
SUMMED = ("NONE", "secagg", "he+secagg")  # protections of algorithms that form sums
EMBEDDINGS = (
    "Because the word embeddings are trained (`freeze_embeddings = false`), another hospital "
    "can find out which words occur in the other hospitals' notes together."
)
NOT_ATTACKED = (
    "This is what the design promises. This page has no attacks: `secure-fl audit` makes them on a "
    "run that was recorded (`secure-fl train --record`)."
)


def write_run_page(folder: Path) -> Path:
    """Write the page of a run's folder, atomically."""
    file = folder / PAGE
    write_again(file, page_of(read_run_history(folder)))
    return file


def page_of(history: RunHistory, *, shared: bool = False) -> str:
    """Render the page of a run, or that of the feature that the run was for."""
    own = (page for section, page in places("pages").items() if history.document.get(section))
    if (page := next(own, None)) is not None:
        return str(resolve(page)(history.document, shared=shared))
    return run_page(history, shared=shared)


class PageWriter:
    """Writer of a run's page after rounds, in at most a tenth of the run's time."""

    def __init__(self, folder: Path, *, in_background: bool = False) -> None:
        """`in_background`: a thread writes, so that no round waits for a page."""
        self._folder, self._due, self._in_background = folder, 0.0, in_background
        self._thread: Thread | None = None

    def __call__(self, event: Event) -> None:
        """Write the page after a round, if enough time has passed."""
        if not isinstance(event, RoundStarted | RoundSaved) or time.monotonic() < self._due:
            return
        if not self._in_background:
            self._write_in_time()
            return
        self._due = math.inf  # until this page is written
        self._thread = Thread(target=self._write_in_time, name="run page")
        self._thread.start()

    def close(self) -> None:
        """Wait for a page that is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write_in_time(self) -> None:
        began = time.monotonic()
        self._write()
        ended = time.monotonic()
        self._due = ended + max(AGAIN / 2, 10 * (ended - began))

    def write(self) -> None:
        """Write the page now; a failure is logged, and `secure-fl report` can repeat it."""
        self.close()
        self._write()

    def _write(self) -> None:
        try:
            write_run_page(self._folder)
        except OSError:
            pass  # the run's own files report a full disk
        except Exception:  # an error in the page must not end the run
            log.warning("the run continues without its page, %s", PAGE, exc_info=True)


def run_page(history: RunHistory, *, shared: bool = False) -> str:
    """Render the page of one run."""
    history = shareable(history) if shared else history
    body = article(history, "run1", shared=shared)
    names = {"leak": "What could leak", "score": "Learning", "privacy": "Privacy budget"}
    names |= {"class": "Correct predictions", "cost": "Cost", "who": "Members"}
    links = {f"run1-{at}": text for at, text in (names | {"set": "Settings"}).items()}
    links = {at: text for at, text in links.items() if f'id="{at}"' in body}
    again = 0 if history.document else AGAIN
    return page(history.name, "A federated training run", links, body, again)


def article(history: RunHistory, at: str, *, shared: bool = False, level: int = 3) -> str:
    """Render all sections about one run."""
    leaks = "" if level > 3 else _leaks(history)  # an audit around the article measured them
    learned = paragraph(_reached(history.document, history.metric))
    learned += _learning(history, at, shared)
    parts = [
        _short(history),
        paragraph(convicted({"convicted": history.convicted}), "alarm"),
        section(f"{at}-leak", "What could leak, and to whom", leaks, level),
        section(f"{at}-score", "How it learned", learned, level),
        *_parts(history.document, shared),
        section(f"{at}-privacy", "Privacy budget", _privacy(history.document, shared), level),
        section(f"{at}-class", "Correct predictions", _classes(history, shared), level),
        section(f"{at}-cost", "What it cost", _cost(history, at, shared), level),
        section(f"{at}-who", "Members", _presence(history, at) + _layers(history), level),
        paragraph("" if shared else approved(history.document)),
        section(f"{at}-set", "Settings and versions", _settings(history, shared), level),
    ]
    return "".join(parts)


def _parts(document: Mapping[str, Any], shared: bool) -> list[str]:
    found = {name: place for name, place in places("parts").items() if document.get(name)}
    return [resolve(place)(document, shared=shared) for place in found.values()]


def _short(history: RunHistory) -> str:
    document = history.document
    count = document.get("protection", {}).get("parties") or len(history.parties)
    who = counted(count, "hospital") if count else "hospitals"
    if document.get("roster") and len(history.parties) == 1:
        who += f", as {history.parties[0]} sees it"
    how = PROTECTIONS.get(history.protection, f"Protection: {history.protection}")
    said = paragraph(f"{history.algorithm} over {who}, {history.status}. {how}.", "lead")
    if not document:
        said += paragraph(
            "The run is in progress or was stopped; this page is updated during the run."
        )
    return said


def _leaks(history: RunHistory) -> str:
    """Say what the design lets each reader learn; an audit measures it."""
    body = ""
    if history.protection == "NONE":
        warn = "Unprotected: the coordinator could read every hospital's update."
        body += paragraph(warn, "alarm")
    elif history.document:
        body += paragraph(str(history.document.get("protection", {}).get("statement", "")))
    if history.protection not in SUMMED:
        return body
    if history.settings.get("model", {}).get("freeze_embeddings") is False:
        body += paragraph(EMBEDDINGS)
    return body + paragraph(NOT_ATTACKED)


def _reached(document: Mapping[str, Any], metric: str) -> str:
    """Describe the scores of the delivered round and of the round with the best dev score."""
    delivered, best = (of_round(document, which) for which in ("delivered", "best"))
    score, other = (metric_of(document, which, "test") for which in ("delivered", "best"))
    if score is None:
        return ""
    over = "all records" if delivered.get("pooled") else "the hospitals' mean"
    said = score_line(document) or f"test {metric} {number(score)} ({over})"
    best_round = "no round had a better dev score"
    if best["round"] != delivered["round"]:
        best_round = f"after round {best['round']}, with the best dev score, {number(other)}"
    saved = document.get("model_round")
    which = f"The saved model is the one after round {saved}." if saved else ""
    return f"After round {delivered['round']}: {said}; {best_round}. {which}"


def _learning(history: RunHistory, at: str, shared: bool) -> str:
    if any(history.curve(split) for split in ("dev", "test")):
        main = [Curve(f"all {s} records", history.curve(s)) for s in ("dev", "test")]
    else:
        main = [Curve(f"mean over hospitals, {s}", history.mean(s)) for s in ("dev", "test")]
    own = () if shared else history.own
    faint = len(own) > MANY
    curves = [Curve(f"{n}, dev", history.curve("dev", party=n), faint) for n in own]
    losses = [
        Curve("training", history.losses()),
        Curve("all dev records", history.curve("dev", "loss") or history.mean("dev", "loss")),
        Curve("all test records", history.curve("test", "loss") or history.mean("test", "loss")),
    ]
    title = f"Score over rounds ({history.metric_name})"
    drawn = chart(f"{at}-curve", [*main, *curves], "round", title, number, fewest=FEWEST)
    drawn += chart(f"{at}-loss", losses, "round", "Loss over rounds", number, fewest=FEWEST)
    return drawn + paragraph(_rates(history))


def _rates(history: RunHistory) -> str:
    training = history.settings.get("training", {})
    algorithm = history.settings.get("algorithm", {})
    if not training or algorithm.get("name") == "probe":  # a probe has a rate of its own
        return ""
    rate, schedule = training.get("learning_rate"), training.get("schedule", "linear")
    rate = "from each model's width" if rate in (None, "none") else rate
    warmup = training.get("warmup", "none")
    warmup = (0.1 if schedule == "linear" else 0.0) if warmup == "none" else float(warmup)
    how = "then falling linearly to 0 at the run's end" if schedule == "linear" else "constant"
    rise = f"rising over the first {100 * warmup:g} % of the run, " if warmup else ""
    epochs = algorithm.get("epochs", 1)
    return (
        f"Learning rate {rate} ({training.get('optimizer')}), {rise}{how}; batches of "
        f"{training.get('batch_size')}; {epochs} local pass{'es' * (epochs != 1)} in each round."
    )


def _classes(history: RunHistory, shared: bool) -> str:
    document = history.document
    kind = document.get("task", {}).get("kind")
    found = by_class(document) or {}
    body = ""
    if kind in ("classification", "pair") and (square := confusion(document)) is not None:
        names, cells = square
        rows = [[f"true {name}", *map(str, row)] for name, row in zip(names, cells, strict=True)]
        heads = ["", *(f"predicted {name}" for name in names)]
        body += table("Test records of all hospitals, last round", heads, rows)
    frequent = sorted(found.items(), key=lambda one: (-one[1][0] - one[1][2], one[0]))[:MOST_SHOWN]
    rows = [
        [
            name,
            _share(hits, hits + false),
            _share(hits, hits + missed),
            _share(2 * hits, 2 * hits + false + missed),
            f"{hits + missed:.0f}",
        ]
        for name, (hits, false, missed) in sorted(frequent)
    ]
    what = {"ner": "Entities", "multilabel": "Labels"}.get(kind, "Classes")
    heads = [what, "precision", "recall", "F1", "test records"]
    shown = f"The {len(rows)} most frequent of {len(found)} {what.lower()}"
    shown = what if len(rows) == len(found) else shown
    body += table(f"{shown} of all hospitals' test records, last round", heads, rows)
    entities = None if shared else entity_table(document)
    if entities is not None:
        body += table(f"Per hospital, {entities.title}", entities.columns, entities.rows)
    return body


def _share(part: float, whole: float) -> str:
    return number(part / whole) if whole else "-"


def _layers(history: RunHistory) -> str:
    heads = ["part", "summed over", "kept at"]
    return table("Parts of the models and their hospitals", heads, layers_table(history.document))


def _cost(history: RunHistory, at: str, shared: bool) -> str:
    up = [(float(n), float(b)) for n, b in sorted(history.up.items())]
    down = [(float(n), float(b)) for n, b in sorted(history.down.items())]
    curves = [Curve("from hospitals", up), Curve("to hospitals", down)]
    options = {"from_zero": True, "fewest": FEWEST}
    body = chart(
        f"{at}-bytes", curves, "round", "Bytes of all hospitals per round", size, **options
    )
    spent = [Curve("a round", history.seconds)]
    body += chart(f"{at}-seconds", spent, "round", "Seconds per round", duration, **options)
    body += paragraph(cost_beside_float32(history.document))
    if not history.document:
        return body
    if not shared and "metrics" in history.document:
        grid = result_table(history.document)
        body += table("Per hospital", grid.columns, grid.rows)
    elif not shared:  # a coordinator's
        sizes = [(name, traffic(history.document, name)) for name in history.parties]
        rows = [[name, size(up), size(down)] for name, (up, down) in sizes]
        body += table("Per hospital", ["hospital", "sent", "received"], rows)
    seconds = history.document.get("seconds", {})
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
    """Compare the sent bytes with plain FedAvg of the complete model in float32."""
    values, parties = document.get("values"), len(document.get("parties", ()))
    last = of_round(document, "last").get("round") or document.get("rounds")
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
    """Format a number with four digits; "-" for a party whose training DP-SGD does not cover."""
    return "-" if value is None else f"{value:.4g}"


def _privacy(document: Mapping[str, Any], shared: bool) -> str:
    withheld = ((name, document.get(key) or {}) for key, name in ACCOUNTS.items())
    if held := [(name, found) for name, found in withheld if found.get("withheld")]:
        line = "{} at δ = {:g} per {}. The ε is this hospital's own figure and is not shared."
        lines = (line.format(name, found["delta"], found["unit"]) for name, found in held)
        return "".join(map(paragraph, lines))
    body = ""
    if privacy := document.get("privacy"):
        said = _dp(privacy)
        body += paragraph(f"DP-SGD: {said}, of a budget of {privacy['budget']:g}.")
        if missing := ", ".join(privacy.get("uncovered", ())):
            body += paragraph(f"This does not protect the records of {missing}.", "alarm")
        names = ("epsilon", "epsilon_of_this_run", "noise_multiplier", "sample_rate", "steps")
        rows = [
            [party, *(_figure(privacy[name][party]) for name in names)]
            for party in ({} if shared else privacy["epsilon"])
        ]
        body += table("Per hospital", ["hospital", *map(_words, names)], rows)
        body += paragraph(f"This is valid if {privacy['assumes']}.")
    if (noise := noise_line(document)) is not None:
        body += paragraph(noise)
    if not body and "metrics" in document:  # a coordinator's document has no metrics
        body = paragraph(
            "No differential privacy. Sums hide contributions, but what the trained model reveals "
            "about its records is not bounded."
        )
    return body


def _dp(privacy: Mapping[str, Any]) -> str:
    loss = privacy["overall_epsilon"]
    if loss is None:
        spent = "unbounded ε"
    elif privacy.get("noise") == "shared":
        spent = (
            f"ε = {loss:.3f} towards the other hospitals, {privacy['model']:.3f} towards readers "
            "of the model alone,"
        )
    else:
        spent = f"ε = {loss:.3f}"
    return f"{spent} at δ = {privacy['delta']:g} per {privacy['unit']}"


def _words(name: str) -> str:
    return name.replace("_", " ").replace("epsilon", "ε")


def _presence(history: RunHistory, at: str) -> str:
    members = [(float(n), float(count)) for n, count in sorted(history.here.items())]
    body = paragraph(", ".join(history.parties))
    if len({count for _, count in members}) > 1:
        curve, title = [Curve("members", members)], "Members per round"
        body += chart(f"{at}-members", curve, "round", title, lambda v: f"{v:.0f}", from_zero=True)
    elif members:
        body += paragraph(f"All {members[0][1]:.0f} members took part in every round.")
    return body + "".join(paragraph(note) for note in history.notes[-20:])


def _settings(history: RunHistory, shared: bool) -> str:
    versions = history.document.get("versions", {})
    rows = [[name, str(value)] for name, value in versions.items()]
    body = paragraph(f"Seed {history.settings.get('run', {}).get('seed', 0)}.")
    body += folded("Versions", table("Versions", ["package", "version"], rows, figures=False))
    if shared:  # settings name the files and folders of hospitals
        return body
    return body + folded("All settings", code(history.text, "Settings"))
