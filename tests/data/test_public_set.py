"""Public records: the same at all members, without labels, and no member's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from secure_fl import corpora
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.cli.init import template
from secure_fl.cli.main import main
from secure_fl.config import load as config
from secure_fl.data.examples import (
    Example,
    Impression,
    Tagged,
    Text,
    digest,
    first_unlabelled,
    overlap,
    without_labels,
)
from secure_fl.data.silo import Silo
from secure_fl.data.splits import load, write
from secure_fl.errors import DataError
from secure_fl.events import EventLog
from secure_fl.federation.federation import Federation
from secure_fl.federation.validation import rules_of
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.settings import Kind, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS, silos, small
from tests.support.event_documents import into
from tests.support.raising import raises

HOSTED = [name for name, entry in ALGORITHMS.items() if entry.has_host]
CROSSING = ("party", "direction", "kind", "audience", "head_bytes", "bulk_bytes")
TAGGED = Tagged("t", ("no", "rash"), ("O", "B-ADE"))
SHOWN = Impression("i", ("read",), ("one", "two"), (True, False))


def public(size: int = 20) -> tuple[Example, ...]:
    return corpora.public("ade", seed=0, size=size)


def site(silo: Silo, events: list[Any] | None = None, kind: Kind = "classification") -> Site:
    settings = TaskSettings(kind=kind, labels=LABELS, max_length=32)
    listener = None if events is None else into(events)
    training = TrainingSettings(batch_size=8, device="cpu")
    model, recorder = ModelSettings(layers=1), EventLog(silo.name, listener)
    return Site(
        silo, SiteSpec(make_task(settings, silo.train), model, training, 0), SiteContext(recorder)
    )


def holding(records: Sequence[Example]) -> Silo:
    return replace(silos(1, 12)[0], public=records)


# --- what is compared --------------------------------------------------------


def test_an_overlap_is_of_texts_whatever_their_case_spacing_id_and_label() -> None:
    private: list[Example] = [Text("a", "A rash  again", label="ade"), Text("b", "fine"), TAGGED]
    same = [Text("x", " a RASH\nagain"), Text("y", "a rash again", label="no"), Text("z", "FINE")]
    other = [Text("a", "a rashagain"), Text("b", "fine.")]
    assert overlap(private, [*same, *other]) == len(same)
    assert overlap(private, [Tagged("u", ("No", "rash"))]) == 1
    assert overlap([SHOWN], [replace(SHOWN, id="j"), replace(SHOWN, history=())]) == 1
    assert overlap(private, ()) == overlap((), same) == 0


def test_of_pairs_both_texts_must_be_the_same() -> None:
    private = [Text("a", "one", "two")]
    assert overlap(private, [Text("b", "One", "Two")]) == 1
    for other in (("one", "three"), ("two", "one"), ("one", None), ("one two", None)):
        assert overlap(private, [Text("b", *other)]) == 0


def test_a_digest_tells_ids_texts_and_order_apart_and_ignores_labels() -> None:
    a, b = Text("a", "one", label="x"), Text("b", "two", "three")
    others = [
        (b, a),
        (a,),
        (a, replace(b, id="c")),
        (replace(a, text="One"), b),
        (a, replace(b, text="two three", pair=None)),
        (a, Tagged("b", ("two", "three"))),
        (a, Impression("b", ("two",), ("three",), (True,))),
    ]
    found = {digest(records) for records in [(a, b), *others]}
    assert len(found) == 1 + len(others) and all(len(each) == 32 for each in found)
    assert digest((a, b)) == digest(without_labels((a, b)))


def test_labels_are_taken_off_and_rows_without_one_are_found() -> None:
    labelled: list[Example] = [Text("a", "one", label="x"), Text("s", "two", label=0.0), TAGGED]
    blind = without_labels([*labelled, SHOWN])
    assert first_unlabelled([*labelled, SHOWN]) is None
    assert [first_unlabelled([record]) for record in blind[:-1]] == [0, 0, 0]
    assert first_unlabelled([*labelled, Text("e", "three", label="")]) == len(labelled)
    assert blind[-1] == replace(SHOWN, clicks=(False, False))
    assert without_labels(blind) == blind


# --- at a site ---------------------------------------------------------------


def test_a_site_reads_public_records_without_their_labels() -> None:
    records = public()
    there = site(holding(records))
    assert site(replace(holding(()), train=records)).train.labelled  # they do have labels
    assert all(e.label is None for e in there.silo.public if isinstance(e, Text))
    assert len(there.public) == len(records) and not there.public.labelled
    batch = there.public.batch(torch.arange(3))
    assert "labels" not in batch and len(batch["input_ids"]) == 3
    assert there.public is there.public  # tokenised once


def test_members_with_the_same_records_have_the_same_digest() -> None:
    one, same, other = (site(holding(r)).public_digest for r in (public(), public(), public(19)))
    assert one == same != other


def test_without_public_records_a_site_says_how_to_give_them() -> None:
    with raises(DataError, "public in [data]", party="hospital-1", split="public"):
        _ = site(holding(())).public


def test_a_public_record_that_cannot_be_read_is_named() -> None:
    odd = (*(Text(str(k), f"text {k}", "pair") for k in range(2)), Text("2", "alone"))
    silo = Silo("north", [Text("a", "one", "two", "ade")], public=odd)
    with raises(DataError, party="north", split="public", record=3, field="pair"):
        _ = site(silo, kind="pair").public


def test_public_records_that_are_also_private_are_counted_where_they_are_private() -> None:
    silo, records = silos(1, 12)[0], public()
    events: list[dict[str, Any]] = []
    _ = site(replace(silo, public=records), events).public
    assert events == []
    parts = (silo.train, silo.dev, silo.test)
    known = [e for part in parts for e in part[:1] if isinstance(e, Text)]
    again = [replace(e, id=f"p{k}", text=f"{e.text.upper()} ") for k, e in enumerate(known)]
    there = site(replace(silo, public=(*records, *again)), events)
    _ = there.public, there.public
    (warned,) = events
    assert warned["code"] == "public overlap" and warned["party"] == silo.name
    assert warned["text"].startswith(f"{len(again)} public records are not only public")


# --- in a federation ---------------------------------------------------------


@pytest.mark.parametrize("name", HOSTED)
def test_what_init_writes_gives_a_host_and_public_records(name: str, tmp_path: Path) -> None:
    text = template("classification", name, 3, tmp_path / "x.toml")
    made = config.silos(config.loads(text))
    assert [silo.role for silo in made] == ["party"] * 3 + ["host"]
    assert {len(silo.public) for silo in made} == {240} and len(made[-1].train) == 60
    federation = Federation.of(config.loads(text))
    assert federation.rules.host == "host"


def test_the_host_of_a_generated_form_is_the_rules_host() -> None:
    text = '[data]\ncorpus = "ade"\nsize = 12\npublic = 9\nlabelled = 8\n[algorithm]\nname = "{}"\n'
    hosted = replace(ALGORITHMS["fedavg"], has_host=True)
    settings = config.loads(text.format(HOSTED[0]))
    rules = rules_of(config.silos(settings), settings.protection, hosted)
    assert rules.host == "host" and rules.min_cohort == 3
    assert Federation.of(config.loads(text.format("fedavg"))).rules.host is None
    assert len(Federation.of(config.loads(text.format("centralized"))).hospitals) == 3


def test_no_message_is_other_than_it_was_because_of_an_overlap() -> None:
    records = public(16)
    one, *others = [replace(silo, public=records) for silo in silos(4, 16)]
    host = replace(others.pop(), role="host")
    known = replace(one, dev=(*one.dev[:-1], labelled(records[0])))
    told = []
    for first in (one, known):
        events: list[dict[str, Any]] = []
        small(FedID(rounds=1, epochs=1), silos=[first, *others, host], listener=into(events)).run()
        sent = [[e[k] for k in CROSSING] for e in events if e["event"] == "crossing"]
        told.append(([e for e in events if e["event"] == "warning"], sorted(sent)))
    (before, usual), (after, sent) = told
    assert before == [] and [(e["party"], e["text"][:15]) for e in after] == [
        (one.name, "1 public record")
    ]
    assert sent == usual != []


def labelled(example: Example) -> Example:
    assert isinstance(example, Text)
    return replace(example, label=LABELS[0])


# --- files -------------------------------------------------------------------


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def files(folder: Path) -> dict[str, int]:
    """How many records each file holds."""
    found = sorted(folder.rglob("*.jsonl"))
    sizes = [len(file.read_text().splitlines()) for file in found]
    return dict(zip([str(f.relative_to(folder)) for f in found], sizes, strict=True))


def test_making_a_corpus_writes_the_host_and_the_public_file_too(tmp_path: Path) -> None:
    sizes = ("--size", 12, "--public", 9, "--labelled", 8)
    assert run("make", "ade", "--out", tmp_path, "--parties", 1, *sizes).exit_code == 0
    own = {"hospital-1/train.jsonl": 12, "hospital-1/dev.jsonl": 3, "hospital-1/test.jsonl": 6}
    host = {"host/train.jsonl": 8, "host/dev.jsonl": 2, "host/test.jsonl": 4}
    assert files(tmp_path) == own | host | {"public.jsonl": 9}
    public = load(tmp_path / "public.jsonl", "classification")
    assert public == without_labels(public)


def test_splitting_a_file_loses_nothing_to_the_public(tmp_path: Path) -> None:
    write(silos(1, 200)[0].train, tmp_path / "all.jsonl")
    shares = ("--parties", 3, "--public", 0.5, "--labelled", 0.2)
    done = run("split", tmp_path / "all.jsonl", "--out", tmp_path / "out", *shares)
    assert done.exit_code == 0, done.output
    found = files(tmp_path / "out")
    assert sum(found.values()) == 200
    public = found["public.jsonl"] + sum(n for f, n in found.items() if f.startswith("host/"))
    assert abs(public - 100) < 3 * (200 * 0.5 * 0.5) ** 0.5  # a share on average
    assert all(
        f"{tmp_path / 'out' / name}: {n} records" in done.output for name, n in found.items()
    )
    folders = {name.split("/")[0] for name in found}
    assert folders == {"hospital-1", "hospital-2", "hospital-3", "host", "public.jsonl"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("make", "ade", "--labelled", 8),
        ("split", "all.jsonl", "--parties", 3, "--labelled", 0.1),
        ("split", "all.jsonl", "--public", 0.5),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[object, ...], tmp_path: Path) -> None:
    assert run(*arguments, "--out", tmp_path / "out").exit_code == 2
    assert not (tmp_path / "out").exists()
