"""Our pilot on a job: the folders of its hospitals, and their final weights."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors.torch import load_file

from benchmarks.peers.inside.job import FINAL, TRAINED, Job, save, trained
from benchmarks.peers.prepare import LENGTH, RECORDS
from benchmarks.peers.stage import PORT
from secure_fl import FedAvg, ModelSettings, Script, TaskSettings, TrainingSettings
from secure_fl.config.build import RunSettings
from secure_fl.learning.exporting import WEIGHTS
from secure_fl.policy.plan import Plan
from secure_fl.runs.folder import EVENTS
from secure_fl.settings import Protection, ProtectionSettings
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders

UNUSED = re.compile(r"^(dev|test) = .*\n", re.MULTILINE)  # all of a job's records train


def make(job: Path, out: Path, mode: Protection = "he+secagg") -> PilotFolders:
    """Make hospitals with keys, kits and rules, and the coordinator's plan of the job."""
    about = json.loads((job / "job.json").read_text())
    plan = Plan(
        algorithm=FedAvg(rounds=about["rounds"], epochs=1),
        task=TaskSettings(labels=about["labels"], max_length=LENGTH),
        model=ModelSettings(name=str(job / "model")),
        training=TrainingSettings(
            learning_rate=about["learning_rate"],
            batch_size=about["batch_size"],
            schedule="constant",
            device="cpu",
        ),
        run=RunSettings(seed=about["seed"]),
        protection=ProtectionSettings(mode=mode),
        dataset="notes",
    )
    trial = make_pilot_folders(out / "pilot", about["sites"], plan, port=PORT, size=8)
    for name in trial.names:
        here = trial.of(name)
        (here / "train.jsonl").write_bytes((job / RECORDS / f"{name}.jsonl").read_bytes())
        rules = (here / "site.toml").read_text()
        rules = rules.replace("[site]\n", f'[site]\nprotection = "{mode}"\n', 1)
        (here / "site.toml").write_text(UNUSED.sub(r"\1 = 0.0\n", rules))
    return trial


def make_carried(job: Path, out: Path) -> PilotFolders:
    """Make sites and a coordinator for a plan whose training runs in another engine."""
    about, weights = Job(job), trained(Job(job).model())
    values = {str(at): array.shape for at, array in enumerate(weights.values())}
    plan = Plan(
        algorithm=Script(rounds=about.rounds, values=values | {"loss": ()}),
        dataset="notes",
        protection=ProtectionSettings(bits=16),
    )
    trial = make_pilot_folders(out / "pilot", about.sites, plan, port=PORT, size=8)
    for name in trial.names:
        rules = trial.of(name) / "site.toml"
        rules.write_text(rules.read_text().replace("[site]\n", "[site]\nbits = [16]\n", 1))
    return trial


def collect_carried(job: Path, out: Path, model: Path) -> None:
    """Write the final weights, which only sites have."""
    found, names = load_file(model), trained(Job(job).model())
    save(out / FINAL, {name: found[str(at)] for at, name in enumerate(names)})


def collect(job: Path, out: Path, trial: PilotFolders) -> None:
    """Write the files of the other systems: the final weights, and the begin of each round."""
    events = map(json.loads, (trial.of(HUB) / "run" / EVENTS).read_text().splitlines())
    rounds = [e for e in events if e["event"] == "round_started"]
    said = [{"round": e["round"], "began": e["at"]} for e in rounds]
    (out / TRAINED).write_text("".join(json.dumps(one) + "\n" for one in said))
    found = load_file(trial.of(trial.names[0]) / "runs" / "run" / "model" / WEIGHTS)
    names = trained(Job(job).model())
    save(out / FINAL, {name: found[name] for name in names})
