"""The program's manners: it is quick, suggests words, and a start that fails leaves no trace."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import pytest

from secure_fl.cli.main import main
from secure_fl.cli.options import FiniteRange
from secure_fl.pilot.plan import write_plan
from secure_fl.runs import checkpoint
from tests.support.command_line import ran, run
from tests.support.local_pilot import plan_of
from tests.support.stories import STUDY, written


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("trian",), "'train'"),
        (("predic",), "'predict'"),
        (("doctr",), "'doctor'"),
        (("data", "descibe"), "'describe'"),
        (("settings", "trainin"), "did you mean training? allowed: run, task, data, data.columns"),
        (("init", "--task", "nerr"), "did you mean ner?"),
        (("init", "--algorithm", "fedavgg"), "did you mean fedavg?"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(arguments: tuple[str, ...], meant: str) -> None:
    found = ran(*arguments, code=2)
    assert meant in found.stderr and not found.stdout


LIGHT = """
import json, sys
from secure_fl.cli.main import main
heavy = {"torch", "transformers", "scipy", "pyarrow", "datasets", "matplotlib", "nvflare"}
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments, standalone_mode=False)
    except Exception as error:
        print(error)
    print("LOADED", *arguments, *sorted(heavy & set(sys.modules)), sep="|")
"""
LOOKING_UP = [
    "init study", "init other --algorithm fedid", "settings", "settings run", "settings fedkd",
    "docs settings", "docs commands", "docs no-such-page", "runs", "runs show nosuch",
    "status nosuch", "status pilot", "audit nosuch", "report nosuch", "compare nosuch neither",
    "predict nosuch text", "push nosuch there", "docs", "data corpora", "train nosuch.toml",
    "train syntax.toml", "tune nosuch.toml", "evaluate nosuch --plan nosuch.toml",
    "preflight nosuch.toml",
]  # fmt: skip


def test_what_looks_up_loads_nothing_heavy(tmp_path: Path) -> None:
    """All in one process: what one command loads, those after it report, too."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "syntax.toml").write_text("[algorithm\n")
    (tmp_path / "pilot").mkdir()
    (tmp_path / "pilot" / "settings.toml").write_text(write_plan(plan_of()))
    commands = [line.split() for line in LOOKING_UP]
    command = [sys.executable, "-c", LIGHT, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert told == ["|".join(["LOADED", *arguments]) for arguments in commands], done.stdout


WAITING = [  # imports in this order, each with the libraries that it must not load
    ("secure_fl.cli.site_check", "torch", False),  # until the rehearsal
    ("secure_fl.pilot.coordinator_process", "torch", False),  # never at a coordinator
    ("secure_fl.runs.folder", "torch", False),
    ("secure_fl.pilot.hospital", "transformers.modeling_utils", False),  # until a run begins
    ("secure_fl.pilot.hospital", "pandas", False),  # until a codebook is opened
    ("secure_fl.features.statistics.codebook", "pandas", False),
    ("secure_fl.features.statistics.counting", "pandas", True),
]


def test_what_is_heavy_waits_until_it_is_needed() -> None:
    assert all(importlib.util.find_spec(heavy) for _, heavy, _ in WAITING)
    code = "import sys\n" + "".join(
        f"import {module}\nprint({heavy!r} in sys.modules)\n" for module, heavy, _ in WAITING
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-len(WAITING) :] == [str(loads) for _, _, loads in WAITING]


def test_a_start_that_fails_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "run"
    study.write_text(STUDY)
    short = ("--set", "algorithm.rounds=1", "--quiet", "--out", out)
    broken = run("train", study, "--set", "model.name=./nomodel", *short)
    assert broken.exit_code != 0 and not out.exists()
    assert "model ./nomodel: there is no such folder" in broken.stderr
    ran("train", study, *short)
    assert not list(out.glob("parties/*/checkpoints/round-*"))  # it is finished
    again = ran("train", study, "--resume", "--json", *short[:2], *short[3:])
    assert json.loads(again.stdout) == json.loads((out / "result.json").read_text())
    ran("train", study, "--set", "run.keep_checkpoints=true", *short[:3], "--out", f"{out}-2")
    assert list(Path(f"{out}-2").glob("parties/*/checkpoints/round-*"))


def test_runs_are_removed_but_not_what_is_needed(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two")
    ledger = two / "parties" / "north" / "ledger.sqlite"
    ledger.write_bytes(b"spent")
    rounds = two / "parties" / "north" / "checkpoints" / "round-00001"
    checkpoint.save(rounds, {})
    (rounds.parent / "opened.jsonl").write_text("")
    assert run("runs", "rm", one, "--yes").exit_code == 0 and not one.exists()
    assert run("runs", "rm", two, "--yes").exit_code == 4 and ledger.exists()
    assert run("runs", "rm", two, "--checkpoints", "--yes").exit_code == 0
    assert not rounds.exists() and (rounds.parent / "opened.jsonl").exists()
    assert run("runs", "rm", tmp_path / "none", "--yes").exit_code == 2


def test_a_section_is_found_by_its_last_word_and_a_command_behind_a_folder() -> None:
    found = ran("settings", "dp")
    assert "[training.dp]" in found.stdout and "[site.dp]" in found.stdout
    assert run("settings", "data.party").exit_code == 0
    assert "did you mean secure-fl runs show?" in run("runs", "shw").stderr


def test_python_m_is_the_command() -> None:
    command = [sys.executable, "-m", "secure_fl", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout


def every_number() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every option that is a number: of which command, and how it is called."""
    for path in every_command(main):
        command = of_path(path)
        for option in command.params:
            if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
                assert isinstance(option.type, click.IntRange | FiniteRange), (path, option)
                yield path, option.opts[0]


def test_no_number_may_be_odd() -> None:
    tried = 0
    for path, option in every_number():
        for odd in ("nan", "inf", "-1", "x"):
            found = ran(*path, f"{option}={odd}", code=2)
            assert f"{option}: " in found.stderr, (path, found.stderr)
            tried += 1
    assert tried > 100


def test_a_question_without_a_terminal_says_so() -> None:
    found = ran("site", "init", "north", code=2)
    assert "use options" in found.stderr
    found = ran("site", "init", "bad name", code=2)
    assert "NAME: found 'bad name'; allowed" in found.stderr


def of_path(path: tuple[str, ...]) -> click.Command:
    context, command = click.Context(main), cast(click.Command, main)
    for name in path:
        assert isinstance(command, click.Group)
        command = cast(click.Command, command.get_command(context, name))
    return command


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, (*path, name))


FILE = ("bash-completion/completions",)  # one path that cannot be shorter


def test_every_help_fits_80_columns_says_all_and_explains_each_option() -> None:
    for path in every_command(main):
        command = of_path(path)
        unexplained = [p.opts for p in command.params if isinstance(p, click.Option) and not p.help]
        assert not unexplained, (path, unexplained)
        done = ran(*path, "--help", terminal_width=80)
        long = [one for one in done.output.splitlines() if len(one) > 80]
        assert not [one for one in long if not any(part in one for part in FILE)], (path, long)
        listed = done.output.partition("Commands:")[2].partition("\n\n")[0]
        assert "..." not in listed, path


def test_columns_of_other_names_are_told_as_each_reader_takes_them(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("note,code\nit hurts,yes\nall well,no\n")
    found = ran("data", "describe", tmp_path / "n.csv", code=2)
    assert "--column text=..." in found.stderr
    named = ("--column", "text=note", "--column", "label=code")
    assert run("data", "describe", tmp_path / "n.csv", *named).exit_code == 0
    way = 'columns = { text = "..." }'
    assert way in found.stderr
    columns = way.replace('"..."', '"note", label = "code"')
    (tmp_path / "study.toml").write_text(
        f'[data]\nsource = "n.csv"\nparties = 3\n{columns}\n[algorithm]\nname = "fedavg"\n'
    )
    few = ran("train", tmp_path / "study.toml", code=2)
    assert "2 records are too few for 3 parties of 10 or more" in few.stderr
    assert "alpha" not in few.stderr  # which plays no part


def test_one_file_for_two_hospitals_is_told_before_they_train(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        own = f"{name} was here" if name == "c" else "it hurts"
        rows = "".join(f"{own} {k},{'yes' if k % 2 else 'no'}\n" for k in range(20))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + rows)
    parties = "".join(f'[[data.party]]\nname = "{n}"\ntrain = "{n}.csv"\n' for n in "abc")
    (tmp_path / "study.toml").write_text(f'{parties}[algorithm]\nname = "fedavg"\n')
    started = run("train", tmp_path / "study.toml", "--set", "model.name=./nomodel")
    assert "warning: a: its records equal those of b" in started.stderr
    assert started.stderr.count("warning: ") == 1
