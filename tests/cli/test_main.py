"""The program as a whole: help, errors, exit statuses, completion, and what it does not import."""

from __future__ import annotations

import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from secure_fl import errors
from secure_fl.cli.group import Lazy, Program
from secure_fl.cli.main import COMMANDS, STATUSES
from tests.support.command_line import ran, run

HERE = "tests.cli.test_main"


def test_help_names_every_command_and_exit_status() -> None:
    found = ran("--help")
    for name, entry in COMMANDS.items():
        assert f"  {name}" in found.output
        assert entry.help in found.output
    for status in STATUSES:
        assert f"\n  {status} " in found.output


def test_every_exit_status_of_the_error_tree_is_documented() -> None:
    kinds = [errors.SecureFLError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        assert kind.exit_status in STATUSES


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_explains_itself_with_examples(name: str) -> None:
    entry = COMMANDS[name]
    command = getattr(import_module(entry.module), entry.name)
    assert isinstance(command, click.Command)
    found = ran(name, "--help")
    if not isinstance(command, click.Group):
        assert f"secure-fl {name}" in found.output


def spent_by_children() -> float:
    """Processor time, which other work on this machine does not add to."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from secure_fl.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'pydantic', 'numpy', 'rich', 'transformers'} & set(sys.modules)))"
    )
    before = spent_by_children()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert spent_by_children() - before < 0.5


def test_the_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert run("--version").output == f"secure-fl {version('sealed-federation')}\n"


@pytest.mark.parametrize("arguments", [["bogus"], ["train"], ["runs", "show"], ["init", "--x"]])
def test_wrong_command_lines_exit_with_2(arguments: list[str]) -> None:
    found = ran(*arguments, code=2)
    assert found.stderr.startswith("error: ") and "--help" in found.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_program(shell: str) -> None:
    found = ran("completion", shell)
    assert "_SECURE_FL_COMPLETE" in found.output
    assert "secure-fl" in found.output


def test_completion_completes() -> None:
    script = Path(sys.executable).with_name("secure-fl")
    environment = {"_SECURE_FL_COMPLETE": "bash_complete", "COMP_WORDS": "secure-fl d"}
    done = subprocess.run(
        [script], env=environment | {"COMP_CWORD": "1"}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["plain,demo", "plain,data", "plain,docs", "plain,doctor"]


# --- how errors end the program ----------------------------------------------


@click.command()
@click.argument("kind")
def fail(kind: str) -> None:
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "bug":
        raise ZeroDivisionError("by nothing")
    raise errors.BudgetError("ε is spent", reason="spent", fix="stop here", silo="north")


PROGRAM = Program(
    "program", callback=lambda: None, commands_on_use={"fail": Lazy(HERE, "fail", "Fail.")}
)


def failing(kind: str, *flags: str) -> Result:
    return CliRunner().invoke(PROGRAM, ["fail", kind, *flags])


def test_our_errors_are_clear_text_without_a_traceback() -> None:
    found = failing("ours")
    assert found.exit_code == errors.BudgetError.exit_status
    assert found.stderr == "error: silo north: ε is spent\n  -> stop here\n"
    assert found.stdout == ""


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in failing("ours").stderr
    assert "Traceback" in failing("ours", "--debug").stderr
    monkeypatch.setenv("SECURE_FL_DEBUG", "1")
    assert "Traceback" in failing("ours").stderr


def test_a_fault_of_ours_says_how_to_report_it() -> None:
    found = failing("bug")
    assert found.exit_code == 1
    assert "ZeroDivisionError: by nothing" in found.stderr
    assert "doctor --json" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_interrupt_exits_with_130() -> None:
    assert failing("interrupt").exit_code == 130


def test_without_standalone_mode_errors_reach_the_caller() -> None:
    with pytest.raises(errors.BudgetError):
        PROGRAM.main(["fail", "ours"], standalone_mode=False)
