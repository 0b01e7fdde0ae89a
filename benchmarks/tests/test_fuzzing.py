"""Decoders of bytes from others: the committed inputs, and the checks of the fuzzer itself."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.fuzzing import command, target
from benchmarks.fuzzing.corpus import FOLDER, commit, committed, minimised
from benchmarks.fuzzing.mutate import mutated
from benchmarks.fuzzing.target import FuzzTarget, attempt
from benchmarks.fuzzing.targets import TARGETS
from secure_fl.errors import RunError, WireError
from tests.support.raising import raises

SMALL = 300_000  # bytes of all committed inputs
targets = pytest.mark.parametrize("name", TARGETS)


@targets
def test_committed_inputs_are_decoded_or_refused_with_advice(name: str) -> None:
    assert committed(name)
    tried = {key: attempt(TARGETS[name], data) for key, data in committed(name).items()}
    assert {key: one.finding for key, one in tried.items() if one.finding} == {}


@targets
def test_genuine_inputs_are_used_and_mutated_ones_keep_the_promise(name: str) -> None:
    of, rng = TARGETS[name], random.Random(0)
    for data in of.seeds().values():
        assert attempt(of, data).finding == ""
        assert [attempt(of, mutated(of.form, data, rng)).finding for _ in range(3)] == [""] * 3


def test_committed_inputs_are_small() -> None:
    files = list(FOLDER.glob("*"))
    assert {file.stem for file in files} == set(TARGETS)
    assert sum(file.stat().st_size for file in files) < SMALL


def _raise(error: Exception) -> NoReturn:
    raise error


def _endless(data: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("decode", "finding"),
    [
        (lambda data: data, ""),
        (lambda data: _raise(WireError("wrong", fix="do this")), ""),
        (lambda data: _raise(RunError("wrong", reason="missing")), ""),
        (lambda data: {}[data], "KeyError"),
        (lambda data: data.decode(), "UnicodeDecodeError"),
        (lambda data: target.same(1, 2), "NotCanonicalError"),
        (lambda data: _raise(MemoryError()), "MemoryError"),
        (lambda data: _raise(WireError("")), "WireError does not say what to do"),
        (_endless, "HangError"),
    ],
)
def test_broken_promises_are_findings(
    decode: object, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "LONGEST", 0.05)
    found = attempt(FuzzTarget(decode, dict), b"\xff").finding  # type: ignore[arg-type]
    assert found.startswith(finding) and bool(found) == bool(finding)


def test_a_corpus_keeps_the_smallest_inputs_that_reach_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.fuzzing.corpus.FOLDER", tmp_path)
    of = TARGETS["site-requests"]
    junk = [b"junk", b"more junk", *of.seeds().values()]
    assert minimised(of, junk) == [b"junk"]  # the others reach nothing more
    commit("site-requests", [b"junk", b"x"])
    assert committed("site-requests") == {"000": b"junk", "001": b"x"}


def test_the_command_lists_decoders_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = CliRunner().invoke(main, ["fuzz", "--list"])
    assert [line.split()[0] for line in listed.output.splitlines()] == list(TARGETS)
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with raises(RunError, "pip install", reason="missing-extra"):
        command.fuzzed(["transport"], 1.0, Path())


@pytest.mark.slow
def test_a_decoder_is_fuzzed_in_a_process_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    ask = ["fuzz", "--target", "transport", "--minutes", "0.02", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, ask)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "transport" / "result.json").read_text())
    assert result["executions"] > 100 and result["findings"] == []
