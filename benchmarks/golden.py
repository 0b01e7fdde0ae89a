"""Golden results: a recording of small runs that must come out equal on every later commit.

`--write FOLDER` records one file for each run: digests of all final weights and of all
checkpoints, result.json, the events, the settings as written, and the frames that crossed. `--check
FOLDER` records again and lists the paths that differ.

The module knows only public names (`secure_fl.Federation`, its `run(engine=...)`, `Silo`, the
command line) and the files of run folders, so that the same file records any commit. Not recorded,
because it is random or belongs to the machine: times, versions, keys, masks, run ids, digests of
frames. Weights under noise differ from run to run; of these runs only shapes are recorded.
Sentences may change their wording: such differences are printed, and are no failure.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import os
import re
import runpy
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

Tree: TypeAlias = dict[str, Any]

TIMES = frozenset({"seconds", "at", "versions", "machine", "privacy_share"})
RANDOM = frozenset({"digest", "run_id", "seen", "head", "spent"})
CHANCE = frozenset({"intervals"})  # of noisy runs: there or not, by chance
LONG = 6  # a list of more numbers is recorded as a digest
WORDS = 4  # a string with so many spaces is a sentence
SIGNATURE = 64  # bytes at the end of a frame's head

USUAL = """
run = { seed = 3, keep_checkpoints = true }
task = { labels = ["ade", "no-ade"], max_length = 24 }
data = { corpus = "ade", parties = 3, size = 24 }
model = { layers = 1 }
training = { learning_rate = 2e-3, batch_size = 8, device = "cpu" }
protection = { mode = "secagg", bits = 8 }
algorithm = { name = "fedavg", rounds = 2 }
"""
HOST = "data = { public = 16, labelled = 16, size = 16 }"
SIX = "data = { parties = 6, size = 12 }"
TIERS = f"{SIX}\nalgorithm.tiers = {{ weak = 1, strong = 2 }}"
FOUR = "data.parties = 4\nprotection.threshold = 3"
FEDKD = 'algorithm = { name = "fedkd", student_layers = 1, MORE }'
FEDID = 'algorithm = { name = "fedid", epochs = 1, MORE }'
RISKY = (
    'run.seed = 6\ntraining = { optimizer = "sgd", schedule = "constant", learning_rate = RATE }'
)


@dataclass(frozen=True)
class Case:
    """One recorded run."""

    name: str
    changes: str = ""  # of the usual settings, as TOML
    noisy: bool = False  # weights are random: shapes are recorded, and no values
    silent: tuple[str, int] | None = None  # a party, and the exchange from which it never answers
    stop: int | None = None  # the exchange before which the process is interrupted, then resumed


def algorithm(name: str, *changes: str) -> Case:
    """Make the case of one algorithm."""
    return Case(f"algorithm-{name}", "\n".join((f'algorithm.name = "{name}"', *changes)))


MODES = ("none", "secagg", "he+secagg")
CASES = (
    *(Case(f"mode-{mode}", f'protection.mode = "{mode}"') for mode in MODES),
    *map(algorithm, ("fedadam", "feddropout", "fetchsgd", "local", "centralized")),
    algorithm("fedkd", "algorithm.student_layers = 1"),
    *(
        algorithm(name, HOST, "algorithm.epochs = 1")
        for name in ("fedid", "dsfl", "mhat", "feded", "feddf")
    ),
    algorithm(
        "gong", HOST, "algorithm.rounds = 1", "algorithm.epochs = 2", "algorithm.distill_epochs = 2"
    ),
    algorithm("heterofl", SIX, "algorithm.widths = { weak = 0.5, strong = 1.0 }"),
    *(algorithm(name, TIERS) for name in ("inclusivefl", "alllarge", "allsmall", "exclusivefl")),
    Case("fedkd-per-party", FEDKD.replace("MORE", 'factors = "per_party"')),
    Case("fedkd-gradient", FEDKD.replace("MORE", 'exchange = "gradient", steps = 2')),
    Case(
        "fedid-printed",
        f"{HOST}\n"
        + FEDID.replace(
            "MORE",
            'feedback = "scalar", feedback_batch = 8, batches_per_exchange = 1, labelled = false',
        ),
    ),
    Case(
        "inclusivefl-linear",
        f'{TIERS}\nalgorithm.name = "inclusivefl"\nalgorithm.server_optimizer = "linear"\n'
        'algorithm.weights = "users"',
    ),
    Case("guard", "guard = {}\nalgorithm.rounds = 3"),
    Case(
        "guard-again",
        f"{SIX}\nguard = {{ tolerance = 0.0, errors = 0.0 }}\nalgorithm.rounds = 3\n"
        + RISKY.replace("RATE", "0.2"),
    ),
    Case(
        "guard-refuses",
        f"{SIX}\nguard = {{ tolerance = 0.0, errors = 0.0, most = 4 }}\n"
        "guard.search = true\nguard.again = false\n"
        "algorithm.rounds = 5\nprotection.min_cohort = 2\n" + RISKY.replace("RATE", "1.0"),
    ),
    Case("patience", "training.patience = 1\nalgorithm.rounds = 5"),
    Case("scores-stay", "training.pooled_scores = false"),
    *(
        Case(f"adapter-{kind}", f'model.adapter = {{ kind = "{kind}", rank = 2 }}')
        for kind in ("lora", "ffa", "exact", "dora")
    ),
    Case(
        "noise",
        f'{HOST}\ndata.parties = 4\nprotection.mode = "he+secagg"\n'
        "protection.noise = { epsilon = 100.0, delta = 1e-3, force = true }\n"
        + FEDID.replace("MORE", 'counted = "parties"'),
        noisy=True,
    ),
    Case(
        "dp",
        'training.dp = { epsilon = 20.0, delta = 1e-2, accountant = "rdp" }\n'
        "training.batch_size = 12",
        noisy=True,
    ),
    Case(
        "task-ner",
        'task = { kind = "ner", labels = "" }\ndata.corpus = "ner"\nalgorithm.rounds = 1',
    ),
    Case("dropout-secagg", FOUR, silent=("hospital-2", 6)),
    Case("dropout-he+secagg", f'{FOUR}\nprotection.mode = "he+secagg"', silent=("hospital-3", 5)),
    Case("resumed", "algorithm.rounds = 3", stop=11),
    Case("recorded", "run.record = true\nalgorithm.rounds = 1"),
)


# --- the recording engine ----------------------------------------------------------------------


def kind(head: bytes) -> int | str:
    """Return the wire's number of a message's kind."""
    import msgspec

    try:
        return int(msgspec.msgpack.decode(head[1:-SIGNATURE])[-1][0])
    except (msgspec.MsgspecError, TypeError, ValueError, IndexError):
        return "unknown"


def shown(direction: str, party: str, frame: Any) -> str:
    """Describe a frame in a line."""
    head, bulk = bytes(frame[0]), frame[1]
    return f"{direction} {party} kind {kind(head)} head {len(head)} bulk {len(bulk)}"


class Stopped(KeyboardInterrupt):
    """The interrupt of a run that is resumed later."""


class Recorder:
    """The frames of a run, and the faults that a case asks for."""

    def __init__(self, case: Case) -> None:
        self.lines: list[str] = []
        self._case, self._count, self._stopped = case, 0, False

    def engine(self, inner: Any) -> Recording:
        """Wrap an engine."""
        return Recording(inner, self)

    def begin(self) -> None:
        """Count one exchange; interrupt the run where the case asks for it."""
        self._count += 1
        if self._count == self._case.stop and not self._stopped:
            self._stopped = True
            raise Stopped

    def answers(self, party: str) -> bool:
        """Tell a party that answers from one that the case silences."""
        silent = self._case.silent
        return silent is None or silent[0] != party or self._count < silent[1]


@dataclass
class Recording:
    """An engine that notes every frame of another."""

    inner: Any
    recorder: Recorder

    def exchange(self, frames: Mapping[str, Any], deadline: float) -> Iterator[tuple[str, Any]]:
        """Pass frames on, and note them."""
        self.recorder.begin()
        for party in sorted(frames):
            self.recorder.lines.append(shown("to", party, frames[party]))
        asked = {party: frame for party, frame in frames.items() if self.recorder.answers(party)}
        for party, answer in self.inner.exchange(asked, deadline):
            self.recorder.lines.append(shown("from", party, answer))
            yield party, answer


@contextlib.contextmanager
def recorded(case: Case) -> Iterator[list[str]]:
    """Let every run of a federation use a recording engine."""
    from secure_fl import Federation

    original = Federation.run
    usual = inspect.signature(original).parameters["engine"].default
    recorder = Recorder(case)

    def run(self: Any, engine: Callable[..., Any] = usual) -> Any:
        return original(self, engine=lambda sessions: recorder.engine(engine(sessions)))

    Federation.run = run  # type: ignore[method-assign]
    try:
        yield recorder.lines
    finally:
        Federation.run = original  # type: ignore[method-assign]


# --- running -----------------------------------------------------------------------------------


def merged(base: Tree, changes: Tree) -> Tree:
    """Lay changes over a tree of settings."""
    result = base | changes
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            result[name] = merged(base[name], value)
    return result


def toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)


def settings_text(case: Case) -> str:
    """Write a case's settings file; an empty text removes a usual field."""
    tables = tomllib.loads(USUAL)
    for change in filter(None, case.changes.splitlines()):
        tables = merged(tables, tomllib.loads(change))
    chosen = {s: {n: v for n, v in fields.items() if v != ""} for s, fields in tables.items()}
    return "".join(f"{section} = {toml(fields)}\n" for section, fields in chosen.items())


def command(*arguments: str) -> None:
    """Run the program in this process, quietly; an error shows its output."""
    out = io.StringIO()
    before = sys.argv
    sys.argv = ["secure-fl", *arguments]
    status: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            runpy.run_module("secure_fl", run_name="__main__", alter_sys=False)
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.argv = before
    if status != 0:
        raise RuntimeError(f"secure-fl {' '.join(arguments)}: status {status}\n{out.getvalue()}")


def record(case: Case, folder: Path) -> Tree:
    """Run a case from its settings file, and describe all that it leaves."""
    file = folder / "golden.toml"
    file.write_text(settings_text(case), encoding="utf-8")
    run = folder / "run"
    arguments = ["train", str(file), "--out", str(run), "--quiet"]
    with recorded(case) as frames:
        if case.stop is None:
            command(*arguments)
        else:
            with contextlib.suppress(Stopped, RuntimeError):
                command(*arguments)
            frames.append("interrupted")
            command(*arguments, "--resume")
    return {"frames": frames} | described(run, noisy=case.noisy)


def record_evaluation(folder: Path) -> Tree:
    """Train two models, then evaluate both without training."""
    runs = []
    for number in (1, 2):
        case = Case("evaluated", f'algorithm.rounds = {number}\nprotection.mode = "none"')
        file = folder / f"model-{number}.toml"
        file.write_text(settings_text(case), encoding="utf-8")
        runs.append(str(folder / f"model-{number}"))
        command("train", str(file), "--out", runs[-1], "--quiet")
    out = folder / "run"
    plan = folder / "model-1.toml"
    with recorded(Case("evaluation")) as frames:
        command("evaluate", *runs, "--plan", str(plan), "--out", str(out), "--quiet")
    return {"frames": frames} | described(out, noisy=False, place=folder)


def record_together(folder: Path) -> Tree:
    """Train sites as one batch, by the library."""
    return _by_library(Path(folder / "run"), together=True)


def record_library(folder: Path) -> Tree:
    """Train by the library, without a folder."""
    return _by_library(None, together=False)


def _by_library(folder: Path | None, *, together: bool) -> Tree:
    from secure_fl import (
        BatchedTraining,
        FedAvg,
        Federation,
        ModelSettings,
        ProtectionSettings,
        Silo,
        TaskSettings,
        Text,
        TrainingSettings,
    )

    def notes(party: int, part: str, count: int) -> list[Text]:
        made = []
        for number in range(count):
            ill = (number * 7 + party) % 3 == 0
            text = f"Note {number} of ward {party}: " + ("rash after tablets" if ill else "well")
            made.append(Text(f"{part}-{party}-{number}", text, label="ade" if ill else "no-ade"))
        return made

    hospitals = [
        Silo(
            f"hospital-{n}",
            notes(n, "train", 16 + n),
            notes(n + 3, "dev", 6),
            notes(n + 6, "test", 8),
        )
        for n in (1, 2, 3)
    ]
    options: Tree = {"folder": folder} if folder is not None else {}
    if together:
        options["trainer"] = BatchedTraining
    with recorded(Case("library")) as frames:
        result = Federation(
            hospitals,
            FedAvg(rounds=2),
            task=TaskSettings(labels=("ade", "no-ade"), max_length=24),
            model=ModelSettings(layers=1),
            training=TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu"),
            protection=ProtectionSettings(mode="secagg"),
            seed=4,
            progress=False,
            **options,
        ).run()
    found: Tree = {
        "frames": frames,
        "result": normal(result.document),
        "weights": {
            name: {key: digest(value) for key, value in model.state_dict().items()}
            for name, model in result.models.items()
        },
        "predictions": normal(list(result.predict(["Rash after tablets.", "All is well."]))),
    }
    return found | (described(folder, noisy=False) if folder is not None else {})


# --- what is left of a run ---------------------------------------------------------------------


def described(run: Path, *, noisy: bool, place: Path | None = None) -> Tree:
    """Describe a run's folder: files, result, events, weights, checkpoints."""
    place = place or run
    files = sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file())
    document = json.loads((run / "result.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    found: Tree = {
        "files": sorted({unmarked(file) for file in files}),
        "result": normal(document, noisy=noisy, place=place),
        "events": [normal(event, noisy=noisy, place=place) for event in events],
        "settings": normal(tomllib.loads((run / "settings.toml").read_text()), place=place),
    }
    for file in sorted(run.rglob("*.safetensors")):
        if file.name != "tensors.safetensors":
            name = str(file.relative_to(run))
            found.setdefault("weights", {})[name] = weights(file, noisy=noisy)
    for file in sorted(run.rglob("state.json")):
        name = unmarked(str(file.parent.relative_to(run)))
        state = checkpoint(file.parent, noisy=noisy)
        found.setdefault("checkpoints", {})[name] = normal(state, noisy=noisy, place=place)
    for file in sorted(run.rglob("opened.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found.setdefault("opened", {})[str(file.relative_to(run))] = normal(lines)
    return found


def unmarked(path: str) -> str:
    """Replace a random mark in the name of a file or folder."""
    return re.sub(r"[0-9a-f]{16,}", "MARK", path)


def weights(file: Path, *, noisy: bool) -> Tree:
    """Digest a model's tensors by name."""
    from safetensors.torch import load_file

    return {name: digest(tensor, noisy=noisy) for name, tensor in load_file(file).items()}


def digest(value: Any, *, noisy: bool = False) -> str:
    """Digest a tensor: type, shape and bytes."""
    tensor = value.detach().cpu().contiguous()
    form = f"{tensor.dtype} {tuple(tensor.shape)}"
    if noisy:
        return form
    import torch

    raw = tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return f"{form} {hashlib.sha256(raw).hexdigest()}"


def checkpoint(folder: Path, *, noisy: bool) -> Tree:
    """Describe a checkpoint: every value by its path, tensors by digest."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "tensors.safetensors")

    def read(node: Any) -> Any:
        if "tensor" in node:
            return digest(tensors[node["tensor"]], noisy=noisy)
        if "items" in node:
            return {str(name): read(child) for name, child in node["items"]}
        if "scalars" in node:
            return dict(node["scalars"])
        if "values" in node:
            return node["values"]
        if "list" in node:
            return [read(child) for child in node["list"]]
        return node["value"]

    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    found = read(state["state"])
    assert isinstance(found, dict)  # noqa: S101 - a checkpoint is a mapping
    return found


def normal(value: Any, *, noisy: bool = False, place: Path | None = None) -> Any:
    """Leave out of a tree what time, chance and the machine decide; shorten long lists."""
    if isinstance(value, Mapping):
        left_out = TIMES | RANDOM | (CHANCE if noisy else frozenset())
        return {
            str(name): normal(child, noisy=noisy and name not in ("privacy", "noise"), place=place)
            for name, child in value.items()
            if name not in left_out and not str(name).endswith("_seconds")
        }
    if isinstance(value, list | tuple):
        plain = [normal(child, noisy=noisy, place=place) for child in value]
        if len(plain) > LONG and all(isinstance(one, int | float) for one in plain):
            return f"{len(plain)} numbers {hashlib.sha256(json.dumps(plain).encode()).hexdigest()}"
        if noisy and len(plain) > LONG and all(one == "number" for one in plain):
            return f"{len(plain)} numbers"
        return plain
    if isinstance(value, bool) or value is None:
        return value
    if noisy and isinstance(value, int | float):
        return "number"
    if isinstance(value, str) and place is not None:
        return value.replace(str(place), "PLACE")
    return value


# --- comparing ---------------------------------------------------------------------------------


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give every leaf of a tree with its path."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from flat(child, f"{path}/{name}")
    elif isinstance(value, list) and value:
        for number, child in enumerate(value):
            yield from flat(child, f"{path}/{number}")
    else:
        yield path, value


def is_sentence(value: Any) -> bool:
    """Tell a sentence, whose wording may change, from a name or a digest."""
    return isinstance(value, str) and value.count(" ") >= WORDS and not value.startswith("to ")


def differences(before: Tree, now: Tree) -> tuple[list[str], list[str]]:
    """List the paths that differ, and apart from them sentences of another wording."""
    old, new = dict(flat(before)), dict(flat(now))
    wrong: list[str] = []
    wording: list[str] = []
    for path in dict.fromkeys([*old, *new]):
        one, other = old.get(path, "(nothing)"), new.get(path, "(nothing)")
        if one != other or type(one) is not type(other):
            line = f"{path}: {_short(one)} -> {_short(other)}"
            frames = path.startswith("/frames/")
            same = not frames and is_sentence(one) and is_sentence(other)
            (wording if same else wrong).append(line)
    return wrong, wording


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:60]}...{text[-30:]}"


# --- the command -------------------------------------------------------------------------------


def records() -> dict[str, Callable[[Path], Tree]]:
    """List everything that is recorded, by name."""
    made: dict[str, Callable[[Path], Tree]] = {
        case.name: (lambda folder, case=case: record(case, folder))  # type: ignore[misc]
        for case in CASES
    }
    return made | {
        "evaluation": record_evaluation,
        "together": record_together,
        "library": record_library,
    }


def recording(name: str, make: Callable[[Path], Tree]) -> Tree:
    """Record one run in a folder of its own; an error is recorded too."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = make(Path(folder))
        except Exception as error:
            made = {"error": f"{type(error).__name__}: {error}".replace(folder, "PLACE")}
    plain = json.loads(json.dumps(made, sort_keys=True))
    assert isinstance(plain, dict)  # noqa: S101 - of a mapping
    return plain


@click.command()
@click.option("--write", "write", type=click.Path(path_type=Path), help="Record into this folder.")
@click.option("--check", "check", type=click.Path(path_type=Path), help="Compare with this folder.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only runs with this in their name.")
@click.option("--most", default=12, show_default=True, help="Differences shown of each run.")
def golden(write: Path | None, check: Path | None, only: Sequence[str], most: int) -> None:
    """Record small runs of every algorithm and feature, or compare with a recording."""
    if (write is None) == (check is None):
        raise click.UsageError("give one of --write FOLDER and --check FOLDER")
    import torch

    import secure_fl

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    folder = write or check
    assert folder is not None  # noqa: S101 - one of them is given
    click.echo(f"code: {Path(secure_fl.__file__).parent}")
    chosen = {n: f for n, f in records().items() if not only or any(text in n for text in only)}
    failed = 0
    for name, make in chosen.items():
        began = time.perf_counter()
        now = recording(name, make)
        seconds = time.perf_counter() - began
        file = folder / f"{name}.json"
        if write is not None:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(now, indent=1, sort_keys=True), encoding="utf-8")
            click.echo(f"{name}: {now.get('error', 'recorded')} ({seconds:.1f} s)")
            failed += "error" in now
            continue
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        wrong, wording = differences(before, now)
        if "error" in now:
            wrong = [str(now["error"])[-2000:]]
        failed += bool(wrong)
        click.echo(f"{name}: {f'{len(wrong)} DIFFERENCES' if wrong else 'equal'} ({seconds:.1f} s)")
        for line in wrong[:most]:
            click.echo(f"    {line}")
        if len(wrong) > most:
            click.echo(f"    and {len(wrong) - most} more (--most N shows more)")
        for line in wording[:3]:
            click.echo(f"    (wording) {line}")
    click.echo(f"{len(chosen)} runs, {failed} {'failed' if write else 'differ'}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path.cwd()))
    golden()
