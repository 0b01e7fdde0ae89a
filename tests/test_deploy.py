"""Containers and services: they call what the program has, with no more rights than it needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from secure_fl.cli.main import STATUSES, main
from secure_fl.engines.flare.diagnosis import PATIENT
from tests.support import sealed_root
from tests.support.names import ROOT
from tests.support.processes import PROGRAM
from tests.support.sampling import mostly_slow

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMPOSED = {"hospital": "join", "coordinator": "coordinate"}
CONTAINED = pytest.mark.skipif(bool(why := sealed_root.missing()), reason=why)


def parse(words: list[str]) -> str:
    """Take a command line as the program does, without running it; return the command's name."""
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None
            command = found
    command.make_context(command.name, list(words))
    return str(command.name)


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / f"{name}.compose.yaml").read_text())
    return dict(found["services"][name])


def settings(unit: Path) -> dict[str, list[str]]:
    found = defaultdict(list)
    for line in unit.read_text().splitlines():
        if re.match(r"\w+=", line):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def said(file: Path) -> list[list[str]]:
    """Commands in the comments on top of a file, after the words that stand for `secure-fl`."""
    text = re.sub(r"\\\n#\s+", "", file.read_text())
    lines = re.findall(r"^#   (?:hospital|hub) (.*?)(?:  +#.*)?$", text, re.M)
    return [shlex.split(line.replace(" ...", "")) for line in lines]


@pytest.mark.parametrize("wrong", ["jion site.toml", "join site.toml --kit-file kit", "join"])
def test_what_the_program_lacks_is_seen(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        parse(wrong.split())


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composed_service_is_a_command_without_rights(name: str) -> None:
    found = service(name)
    assert parse(found["command"]) == COMPOSED[name]
    assert found["read_only"] and found["cap_drop"] == ["ALL"] and found["init"]
    assert found["security_opt"] == ["no-new-privileges:true"] and found["user"] == "10001:10001"
    assert "cap_add" not in found and "privileged" not in found
    writable = [volume for volume in found["volumes"] if not volume.endswith(":ro")]
    assert writable == ["./state:/state"]
    assert ("ports" in found) == (name == "coordinator")
    assert "--passphrase-file=/run/secrets/passphrase" in found["command"]


@pytest.mark.parametrize("name", COMPOSED)
def test_the_way_that_a_compose_file_tells_is_the_programs(name: str) -> None:
    commands = said(DEPLOY / f"{name}.compose.yaml")
    assert len(commands) == 2
    for words in commands:
        parse(words)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_a_command_without_rights(unit: Path) -> None:
    found = settings(unit)
    (start,) = found["ExecStart"]
    program, *words = start.split()
    assert program.endswith("/secure-fl") and unit.stem == f"secure-fl-{parse(words)}"
    assert found["User"] == ["secure-fl"] and found["CapabilityBoundingSet"] == [""]
    assert found["ProtectSystem"] == ["strict"] and found["NoNewPrivileges"] == ["yes"]
    assert found["LoadCredential"] and found["Restart"] == ["on-failure"]
    (ends,) = found["RestartPreventExitStatus"]
    assert {2, 4, 6, 7} <= {int(status) for status in ends.split()} < set(STATUSES) - {8, 130}
    assert found["SuccessExitStatus"] == ["130"]
    assert "--passphrase-file ${CREDENTIALS_DIRECTORY}/passphrase" in start


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name  # the program is not in /opt here
    here.write_text(unit.read_text().replace("/opt/secure-fl/bin/secure-fl", "/usr/bin/env"))
    verify = ["systemd-analyze", "verify", "--man=no", str(here)]
    done = subprocess.run(verify, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_has_few_rights_by_systemds_own_count(unit: Path, tmp_path: Path) -> None:
    def exposed(text: str) -> int:
        (tmp_path / unit.name).write_text(text)
        judge = ["systemd-analyze", "security", "--offline=true", "--threshold=20"]
        return subprocess.run([*judge, tmp_path / unit.name], capture_output=True).returncode

    assert exposed(unit.read_text()) == 0
    assert exposed(re.sub(r"^Protect.*\n", "", unit.read_text(), flags=re.M)) != 0


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_systemd_takes_the_user() -> None:
    file = DEPLOY / "secure-fl.sysusers"
    done = subprocess.run(["systemd-sysusers", "--dry-run", file], capture_output=True, text=True)
    assert done.returncode == 0 and "secure-fl" in done.stdout + done.stderr


def test_the_kernels_settings_are_known_to_this_kernel() -> None:
    lines = (DEPLOY / "secure-fl.sysctl.conf").read_text().splitlines()
    settings = dict(line.split(" = ") for line in lines if not line.startswith("#"))
    assert settings["net.ipv4.tcp_congestion_control"] == PATIENT
    for name in settings:
        assert Path("/proc/sys", *name.split(".")).exists()


BATCH = DEPLOY / "secure-fl-join.sbatch"


def test_a_slurm_job_is_a_trainer_without_network() -> None:
    text = BATCH.read_text()
    (words,) = re.findall(r"secure-fl}\" (join .*) &$", text, re.M)
    assert parse(shlex.split(words)) == "join" and "--through letters" in words
    (told,) = re.findall(r"^#   (courier .*)$", text, re.M)
    assert parse(shlex.split(told)) == "courier"
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.M))
    assert text.count("#SBATCH") == len(given) and given.keys() >= {"requeue", "time", "signal"}
    assert given["signal"].startswith("B:TERM@")  # to the script, which passes it on


@pytest.mark.parametrize(
    ("asked", "ends", "again"),
    [(True, 0, True), (True, 130, True), (True, 4, False), (False, 0, False)],
)
def test_a_slurm_job_goes_back_to_the_queue_if_it_was_asked_to_leave(
    tmp_path: Path, asked: bool, ends: int, again: bool
) -> None:
    stands_for = {
        "trainer": f"trap 'exit {ends}' TERM; touch began; while {'true' if asked else 'false'};"
        f" do sleep 0.02; done; exit {ends}",
        "scontrol": 'echo "$@" > queued',
    }
    for name, text in stands_for.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o700)
    found = {"SECURE_FL": str(tmp_path / "trainer"), "SLURM_JOB_ID": "7"}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(["bash", str(BATCH)], cwd=tmp_path, env=found | path) as job:
        while not (tmp_path / "began").exists():
            time.sleep(0.01)
        if asked:
            job.terminate()
        assert job.wait(20) == ends
    assert (tmp_path / "queued").exists() == again


def test_the_image_is_made_of_what_was_checked() -> None:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
    told = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert "ARG BASE" in told and "*@sha256:*" in text  # no default, and refused without a digest
    (install,) = re.findall(r"pip install .*", text)
    for wanted in ("--no-index", "--require-hashes", "--only-binary :all:"):
        assert wanted in install
    users = [line for line in told if line.startswith("USER")]
    after = told[told.index(users[-1]) :]
    assert users == ["USER 10001:10001"] and 'ENTRYPOINT ["secure-fl"]' in after
    assert parse(re.findall(r"^RUN secure-fl (.*)$", text, re.M)) == "doctor"


@pytest.mark.parametrize("device", mostly_slow(["cpu", "gpu"], "gpu"))
def test_an_image_for_the_other_device_is_not_built(device: str) -> None:
    """The Containerfile's own line, with the torch that is here."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
    assert "ARG DEVICE=cpu" in text
    (line,) = re.findall(r"^RUN (python3 -c .*)$", text, re.M)
    here = line.replace("python3", sys.executable, 1)
    done = subprocess.run(["sh", "-c", here], env=os.environ | {"DEVICE": device}, check=False)
    assert (done.returncode == 0) == (device == ("gpu" if torch.version.cuda else "cpu"))


@CONTAINED
def test_it_runs_as_nobody_with_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    for folder, written in (("/state", True), ("/tmp", False), (str(ROOT), False)):  # noqa: S108
        tried = sealed_root.run(tmp_path, "touch", f"{folder}/written")
        assert (tried.returncode == 0) == written, tried.stderr
    assert (tmp_path / "state" / "written").stat().st_uid == int(sealed_root.UID)
    for command, answer in (("--version", "secure-fl 0."), ("doctor", "everything works")):
        done = sealed_root.run(tmp_path, sys.executable, "-c", PROGRAM, command)
        assert done.returncode == 0 and answer in done.stdout, done.stdout + done.stderr


@CONTAINED
@pytest.mark.slow
def test_a_pilot_runs_as_nobody_with_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    local = ["pilot", "local", "--rounds", "1", "--size", "16"]
    done = sealed_root.run(tmp_path, sys.executable, "-c", PROGRAM, *local)
    assert done.returncode == 0, done.stdout + done.stderr
    models = tmp_path.glob("state/pilot/*/runs/study/model/model.safetensors")
    assert len(list(models)) == 2  # the third has erased its run
