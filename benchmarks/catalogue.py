"""The benchmarks by name: module, help, small sizes, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module with `measure(**sizes) -> Report`, and the options that choose sizes."""

    module: str
    help: str  # its first sentence is in the list of commands
    quick: Mapping[str, Any] = field(default_factory=dict)  # sizes that take seconds
    options: tuple[click.Option, ...] = ()
    alone: bool = False  # takes minutes or hours: not part of `all`


def _count(flag: str, text: str, least: int = 1) -> click.Option:
    return click.Option([flag], metavar="COUNT", type=click.IntRange(min=least), help=text)


def _text(flag: str, metavar: str, text: str) -> click.Option:
    return click.Option([flag], metavar=metavar, help=text)


def _several(flag: str, name: str, text: str) -> click.Option:
    return click.Option(
        [flag, name],
        multiple=True,
        callback=lambda _ctx, _option, names: names or None,
        help=f"{text} Can be repeated. [default: all]",
    )


def _path(flag: str, metavar: str, text: str) -> click.Option:
    kind = click.Path(dir_okay=metavar == "FOLDER", file_okay=metavar == "FILE", path_type=Path)
    return click.Option([flag], metavar=metavar, type=kind, help=text)


SEED = click.Option(["--seed"], type=int, help="Random seed. [default: 0]")
CELLS = _path("--cells", "FILE", "Save finished runs in this file, and skip those that it holds.")
MODEL = _text("--model", "NAME_OR_FOLDER", "Checkpoint, as for `papers`.")
ENVIRONMENTS = _text(
    "--environments",
    "FOLDER",
    "Folder of `python -m benchmarks.peers.environments FOLDER`. [default: peers]",
)

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "crypto": Benchmark(
            "benchmarks.micro.crypto",
            "Bytes and CPU of a protected sum, in every mode.",
            {"values": 100_000, "repeats": 1},
        ),
        "large": Benchmark(
            "benchmarks.micro.large",
            "Sums of up to 774 million values: bytes, seconds, memory.",
            {"calls": (1_000_000, 4_000_000), "blocks": ()},
        ),
        "protocol": Benchmark(
            "benchmarks.micro.protocol",
            "Bytes and CPU of one sum in cohorts of 3 to 128 parties.",
            {"parties": (3, 10, 32, 100)},
        ),
        "dp": Benchmark(
            "benchmarks.micro.dp",
            "Cost of DP-SGD over plain training.",
            {"records": 96, "repeats": 1, "layers": 1},
        ),
        "savings": Benchmark(
            "benchmarks.micro.savings",
            "Savings by bfloat16, checkpointing and bucketing.",
            {"records": 32, "repeats": 1, "prompts": 24, "model": "tiny"},
        ),
        "adapters": Benchmark(
            "benchmarks.federations.adapters",
            "Bytes and cost of adapters of ModernBERT-base.",
            {"scale": 4, "tokens": 16, "dp_records": 64, "repeats": 1},
        ),
        "round": Benchmark(
            "benchmarks.federations.round",
            "Time of a simulated round by its parts, for every algorithm.",
            {"records": 16, "batch": 8, "model": "tiny", "names": ("fedavg", "fedkd", "fedid")},
            (MODEL,),
        ),
        "statistics": Benchmark(
            "benchmarks.federations.statistics",
            "An attack on random codebooks; cost and hidden counts.",
            {"parties": 3, "records": 100, "codebooks": 10, "patients": (300,)},
        ),
        "audits": Benchmark(
            "benchmarks.federations.audits",
            "Seconds of audits. --quick skips the full audit and the checkpoint's.",
            {"full": False, "words": 3_000, "turns": 1},
        ),
        "leakage": Benchmark(
            "benchmarks.federations.leakage",
            "Membership attacks on runs of different ε, as a curve.",
            {"size": 16, "rounds": 1, "epochs": 1, "models": (4, 2), "epsilons": (4.0, None)},
            (_path("--pages", "FOLDER", "Keep the runs, their pages and the picture here."),),
        ),
        "guard": Benchmark(
            "benchmarks.federations.guard",
            "Effect of the guard against one bad hospital of eight.",
            {"sets": ("built-in ade",), "seeds": 1, "rounds": 3, "records": 240},
            (CELLS,),
        ),
        "engine": Benchmark(
            "benchmarks.micro.engine",
            "Exchanges over FLARE and in one process.",
            {"repeats": 20, "large_repeats": 2},
        ),
        "startup": Benchmark(
            "benchmarks.micro.startup",
            "Seconds of the import and of the help text.",
            {"repeats": 3},
        ),
        "network": Benchmark(
            "benchmarks.federations.network",
            "Cost of a bad line for pilots of FedKD and FedID. It needs root and iproute2.",
            {"rounds": 4},
            (
                _count("--rounds", "Rounds. [default: 8]", least=3),
                click.Option(
                    ["--loss"],
                    metavar="SHARE",
                    type=click.FloatRange(0, 0.5),
                    help="Share of lost packets on bad lines. [default: 0.01]",
                ),
                MODEL,
                _text(
                    "--congestion",
                    "NAME",
                    "TCP's congestion control: bbr, cubic. [default: the machine's]",
                ),
            ),
            alone=True,
        ),
        "crowd": Benchmark(
            "benchmarks.federations.crowd",
            "A pilot of thirty hospital processes: memory, CPU, rounds.",
            {"hospitals": 4, "rounds": 2},
            alone=True,
        ),
        "steps": Benchmark(
            "benchmarks.federations.steps",
            "A pilot of a probe with shared noise: time and bytes.",
            {"steps": 4, "size": 48, "public": 0},
            (
                _count("--steps", "Steps. [default: 60]"),
                _count("--hospitals", "Hospitals. [default: 4]", least=3),
                _count("--public", "Public notes. 0: none. [default: 600]", least=0),
                _count(
                    "--trip",
                    "Milliseconds of a round trip; needs root and iproute2. [default: 0]",
                    least=0,
                ),
                MODEL,
            ),
            alone=True,
        ),
        "defaults": Benchmark(
            "benchmarks.evidence.defaults",
            "Results of every algorithm at its default settings.",
            {"sets": ("built-in ade",), "only": "fedavg", "records": 96},
            (
                _several("--set", "sets", "Data set, such as sst2."),
                _text("--only", "TEXT", "Algorithms with this in the name."),
                _path("--work", "FOLDER", "Finished cells. [default: benchmarks/results/defaults]"),
            ),
            alone=True,
        ),
        "process-storms": Benchmark(
            "benchmarks.storms.process_storms",
            "Pilots in which one machine lies and others are killed.",
            {"storms": 1},
            (
                _count("--storms", "Number of storms. [default: 300]"),
                SEED,
                _count("--within", "Exchanges in which kills are drawn. [default: 30]", least=3),
                CELLS,
                _count("--jobs", "Storms at a time. [default: 1]"),
            ),
            alone=True,
        ),
        "fuzz-run": Benchmark(
            "benchmarks.micro.fuzz_run",
            "Mutated frames at both ends of a run.",
            {"mutants": 3_000},
            (_count("--mutants", "Mutants, at least. [default: 1000000]"), SEED),
            alone=True,
        ),
        "peers": Benchmark(
            "benchmarks.peers.compare",
            "The same job on other systems and here, side by side.",
            {"names": ("ours", "ours-simulated"), "turns": 1, "rounds": 4, "records": 32},
            (
                ENVIRONMENTS,
                _several("--only", "names", "One of `benchmarks.peers.ways`."),
                _count("--turns", "Runs of each. [default: 5]"),
                _count("--sites", "Sites. [default: 4; simulated: 100]", least=3),
                _count("--records", "Records of each site. [default: 120; simulated: 24]"),
                _count("--rounds", "Rounds. [default: 4]", least=3),
                _text("--model", "NAME", "tiny, 1M, 10M, 100M, or a checkpoint. [default: tiny]"),
                _text("--data", "FOLDER", "Data sets with ade_cls. [default: built-in notes]"),
                click.Option(["--simulated"], is_flag=True, help="Many clients in one process."),
                _count("--threads", "Threads of each process. [default: 1]"),
            ),
            alone=True,
        ),
        "breaking": Benchmark(
            "benchmarks.peers.breaking",
            "Kills, lies and eavesdropping, on other systems and here.",
            {"names": ("ours",), "mishaps": ("nan",), "records": 32},
            (
                ENVIRONMENTS,
                _text("--work", "FOLDER", "Keep runs here, and skip those that it holds."),
            ),
            alone=True,
        ),
    }
)
