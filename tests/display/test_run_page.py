"""The page of a run: what it says, that it is small, alone and readable, and whom it tells of."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from secure_fl import FedAvg
from secure_fl.audits.document import encode
from secure_fl.cli.main import main
from secure_fl.display.compare_page import comparison_page, difference, other_data, side_by_side
from secure_fl.display.run_history import LEAD, by_class, confusion, read_run_history
from secure_fl.display.run_page import PAGE, PageWriter, run_page, write_run_page
from secure_fl.errors import RunError
from secure_fl.events import RoundSaved, RoundStarted
from secure_fl.testing.hospitals import silos, small
from tests.support.documents import document
from tests.support.pages import Page
from tests.support.raising import raises
from tests.support.screens import require_screen
from tests.support.stories import story, written


def require_well_formed(text: str) -> None:
    page = Page(text)  # it refuses tags that are not closed
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    assert {e.attributes["href"].removeprefix("#") for e in page.all("a")} <= set(ids)


def test_it_is_well_formed_small_and_loads_nothing(tmp_path: Path) -> None:
    names = tuple(f"hospital-{k:03}" for k in range(1, 129))
    many = run_page(story(tmp_path / "many", rounds=60, parties=names))
    assert len(many.encode()) < 1_000_000
    for text in (many, run_page(story(tmp_path / "one"))):
        require_well_formed(text)
        assert not re.search(r"src=|url\((?!#)|@import|<script|https?://", text)


def test_names_and_settings_are_data_and_never_markup(tmp_path: Path) -> None:
    wrong = ("<b>north</b>", "south&", "west")
    folder = written(tmp_path / "r", parties=("north", "south", "west"))
    for file in ("events.jsonl", "result.json"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("north", wrong[0]).replace("south", wrong[1]))
    page = run_page(read_run_history(folder))
    assert "<b>north" not in page and "&lt;b&gt;north" in page and "south&amp;" in page


def test_what_is_shared_tells_of_no_single_hospital(tmp_path: Path) -> None:
    told = story(tmp_path / "r")
    own, handed_on = run_page(told), run_page(told, shared=True)
    for text in ("north, dev", "Per hospital"):
        assert text in own and text not in handed_on
    assert "all dev records" in handed_on and "predicted ade" in handed_on


def test_a_shared_page_has_no_audit_and_no_paths(tmp_path: Path) -> None:
    """Attacks are on single hospitals; settings name their files."""
    run = written(tmp_path / "r")
    settings = (run / "settings.toml").read_text() + '\n[[data.party]]\ntrain = "/srv/north.csv"\n'
    (run / "settings.toml").write_text(settings)
    (run / "audit.json").write_bytes(encode(document()))
    pages = []
    for more in ([], ["--shared"]):
        main(["report", str(run), *more, "--out", str(tmp_path)], standalone_mode=False)
        pages.append((tmp_path / PAGE).read_text())
    for text in ("the update of north", "/srv/north.csv"):
        assert text in pages[0] and text not in pages[1]


def test_a_hospitals_shared_page_has_only_pooled_figures(tmp_path: Path) -> None:
    """The folder of a hospital in a pilot: each of its means is over this hospital alone."""
    folder = written(tmp_path / "r", rounds=4, parties=("north",))
    result = json.loads((folder / "result.json").read_text())
    result["privacy"] = {"epsilon": {"north": 1.25}, "overall_epsilon": 1.25, "delta": 1e-5}
    result["privacy"] |= {"unit": "patient", "budget": 2.0, "assumes": "all is well"}
    for name in ("epsilon_of_this_run", "noise_multiplier", "sample_rate", "steps"):
        result["privacy"][name] = {"north": 1.0}
    for found in result["metrics"].values():
        found["pooled"], found["intervals"] = {}, {}
    (folder / "result.json").write_text(json.dumps(result))
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(one for one in lines if "pooled" not in one))
    private = ["mean over hospitals, dev", "After round 4", "ε = 1.250", "all dev records"]
    private += ["training: 0.800", "Bytes of all hospitals", "Seconds by phase", "Hospitals sent"]
    told = read_run_history(folder)
    own = run_page(told)
    assert [text for text in private if text not in own] == []
    pages = {"run": run_page(told, shared=True)}
    pages["compared"] = comparison_page([told, told], shared=True)
    found = {(name, text) for name, page in pages.items() for text in private if text in page}
    assert not found
    assert "DP-SGD at δ = 1e-05 per patient" in pages["run"]
    assert "+0.0" in comparison_page([told, told]) and "+0.0" not in pages["compared"]


def test_a_run_under_way_has_a_page_that_is_read_anew(tmp_path: Path) -> None:
    page = run_page(story(tmp_path / "r", done=False))
    assert 'http-equiv="refresh"' in page and "round 6 of 6" in page
    assert 'http-equiv="refresh"' not in run_page(story(tmp_path / "done"))


def test_a_training_run_writes_its_page(tmp_path: Path) -> None:
    seen: list[int] = []

    def listen(event: object) -> None:
        seen.append(int((tmp_path / "run" / PAGE).exists()))

    small(FedAvg(rounds=2), silos=silos(size=16), folder=tmp_path / "run", listener=listen).run()
    assert 0 < sum(seen) < len(seen)  # from the first round on
    page = (tmp_path / "run" / PAGE).read_text(encoding="utf-8")
    assert "finished" in page and "predicted " in page and "float32" in page
    assert "<svg" not in page  # two rounds
    assert len(read_run_history(tmp_path / "run").seconds) == 2


def test_a_round_takes_from_one_begin_to_the_next_whoever_tells_of_it(tmp_path: Path) -> None:
    def told(*events: tuple[str, int, float]) -> list[tuple[float, float]]:
        folder = written(tmp_path / str(len(list(tmp_path.iterdir()))))
        kinds = {True: RoundStarted, False: RoundSaved}
        lines = [
            msgspec.json.encode(
                kinds[party == "coordinator"](party=party, round=n, members=("a",), at=at)
            )
            for party, n, at in events
        ]
        (folder / "events.jsonl").write_bytes(b"\n".join(lines))
        return read_run_history(folder).seconds

    # The coordinator tells that a round begins, a hospital that one is over.
    both = [("coordinator", 1, 0.0), ("coordinator", 2, 4.0), ("a", 1, 4.5), ("b", 1, 6.0)]
    both += [("coordinator", 3, 9.0), ("a", 2, 9.5), ("b", 2, 9.9)]
    assert told(*both) == [(1.0, 4.0), (2.0, 5.0)]
    assert told(("a", 1, 4.5), ("a", 2, 9.5)) == [(2.0, 5.0)]  # at a hospital
    # A coordinator that went back to round 1 after round 2 had begun.
    assert told(("coordinator", 1, 0.0), ("coordinator", 2, 4.0), ("coordinator", 1, 9.0)) == []


def test_a_run_goes_on_whose_page_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator fell over its page's chart at each start, and the run never ended."""

    def broken(*_: object, **__: object) -> str:
        raise ValueError("math domain error")

    monkeypatch.setattr("secure_fl.display.run_page.run_page", broken)
    with pytest.raises(ValueError, match="math domain"):
        write_run_page(written(tmp_path / "alone"))
    PageWriter(written(tmp_path / "run"))(RoundStarted(round=1, members=()))
    assert "continues without its page" in caplog.text
    assert "math domain" in caplog.text


def test_no_round_of_a_pilot_waits_for_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_draw, folder = Event(), written(tmp_path / "run")

    def slow(*given: Any, **options: Any) -> str:
        assert may_draw.wait(20.0)
        return run_page(*given, **options)

    monkeypatch.setattr("secure_fl.display.run_page.run_page", slow)
    writer = PageWriter(folder, in_background=True)
    writer(RoundStarted(round=1, members=()))  # with a writer in the foreground it would not return
    writer(RoundStarted(round=2, members=()))  # a second page is not begun beside the first
    assert not (folder / PAGE).exists()
    may_draw.set()
    writer.close()
    assert "A federated training run" in (folder / PAGE).read_text()


def test_a_confusion_follows_from_counts() -> None:
    counts = {"truly ade": [6, 2], "truly no-ade": [4, 12]}
    document: dict[str, Any] = {"metrics": {"last": {"round": 1, "counts": {"test": counts}}}}
    document["task"] = {"labels": ["ade", "no-ade"]}
    assert confusion(document) == (["ade", "no-ade"], [[6, 2], [4, 12]])
    assert by_class(document) == {"ade": [6, 4, 2], "no-ade": [12, 2, 4]}


def test_a_confusion_has_the_order_of_the_task_and_not_of_sorted_counts() -> None:
    """Sums arrive sorted by name; the columns have the order of `task.labels`."""
    counts = {"truly ade": [1, 47], "truly no-ade": [90, 12]}
    document: dict[str, Any] = {"metrics": {"last": {"round": 1, "counts": {"test": counts}}}}
    document["task"] = {"labels": ["no-ade", "ade"]}
    assert confusion(document) == (["no-ade", "ade"], [[90, 12], [1, 47]])
    assert by_class(document) == {"no-ade": [90, 1, 12], "ade": [47, 12, 1]}


def test_differences_are_paired_by_hospital(tmp_path: Path) -> None:
    first, second = story(tmp_path / "a"), story(tmp_path / "b", shift=0.01)
    found = difference(second.document, first.document)
    assert found is not None and found.hospitals == 3
    assert found.mean == pytest.approx(0.01) and found.half == pytest.approx(0.0, abs=1e-9)
    other = story(tmp_path / "c", parties=("east", "far-east"))
    assert difference(other.document, first.document) is None


def test_runs_side_by_side(tmp_path: Path) -> None:
    stories = [
        story(tmp_path / "fedavg"),
        story(tmp_path / "fedadam", algorithm="fedadam", shift=0.02, rounds=8),
    ]
    require_screen("compared", side_by_side(stories))
    page = comparison_page(stories)
    assert "algorithm.rounds" in page and "Settings that differ" in page
    require_well_formed(page)


def test_runs_on_different_data_are_not_compared_without_a_warning(tmp_path: Path) -> None:
    one, other = story(tmp_path / "a"), story(tmp_path / "b", algorithm="fedkd")
    assert other_data([one, other]) is None
    other.settings = dict(other.settings) | {"data": {"corpus": "ade", "parties": 4}}
    assert "do not compare: data." in (other_data([one, other]) or "")


def test_who_shares_nothing_has_no_protection_to_name(tmp_path: Path) -> None:
    alone = story(tmp_path / "alone", algorithm="local")
    assert side_by_side([alone, story(tmp_path / "b")]).rows[0][:3] == ["alone", "local", "-"]
    assert "local over 3 hospitals, finished. Nothing was shared." in run_page(alone)


def test_trained_embeddings_are_named_where_a_sum_is_seen(tmp_path: Path) -> None:
    run = story(tmp_path / "run")
    said = "another hospital can find out which words occur"
    assert said not in run_page(run)  # frozen, the default
    run.settings = dict(run.settings) | {"model": {"freeze_embeddings": False}}
    assert said in run_page(run)
    run.settings = dict(run.settings) | {"algorithm": {"name": "local"}}
    assert said not in run_page(run)  # nothing is summed


def test_a_coordinators_page_tells_sizes_and_nothing_that_was_learned(tmp_path: Path) -> None:
    folder = written(tmp_path / "study")
    for told in ("parties", "result.json"):
        place = folder / told
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    names = ("north", "south", "west")
    lead = {
        "schema": LEAD,
        "status": "finished",
        "algorithm": "fedavg",
        "rounds": 6,
        "protection": "he+secagg",
        "roster": "12345 67890",
        "bytes": {name: {"up": 660_000, "down": 672_000} for name in names},
        "seconds": {"add": 0.5, "run": 18.0},
    }
    (folder / "result.json").write_text(json.dumps(lead))
    page = run_page(read_run_history(folder))
    assert "over 3 hospitals, finished. Protection: encryption and masks." in page
    assert "learned nothing" in page and "660.0 kB" in page
    assert "No differential privacy" not in page  # it cannot know
    site = read_run_history(written(tmp_path / "site", parties=("north",)))
    site.document = dict(site.document) | {"roster": "12345 67890"}
    assert "1 hospital, as north sees it" in run_page(site)


def test_commands_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a"), written(tmp_path / "b", shift=0.1)
    main(["report", str(a)], standalone_mode=False)
    main(["report", str(a), str(b), "--out", str(tmp_path / "both")], standalone_mode=False)
    assert (a / PAGE).is_file() and (tmp_path / "both" / PAGE).is_file()
    main(["compare", str(a), str(b), "--out", str(tmp_path / "c")], standalone_mode=False)
    assert "+10.0" in capsys.readouterr().out and (tmp_path / "c" / PAGE).is_file()
    for command in ("report", "compare"):
        with raises(RunError, reason="missing"):
            main([command, str(a), str(tmp_path / "nowhere")], standalone_mode=False)
