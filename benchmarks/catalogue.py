"""The benchmarks by name: which module measures, in a line what, and at which small sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module with `measure(**sizes) -> Report`, and the options that choose sizes.

    The first sentence of `help` stands in the list.
    """

    module: str
    help: str
    quick: Mapping[str, Any] = field(default_factory=dict)  # show a figure's structure in seconds
    options: tuple[click.Option, ...] = ()


SEED = click.Option(["--seed"], type=int, help="Which of them. [default: 0]")
STORMS = click.Option(
    ["--storms"], metavar="COUNT", type=click.IntRange(min=1), help="So many. [default: 300]"
)
WITHIN = click.Option(
    ["--within"], metavar="EXCHANGES", type=click.IntRange(min=3), help="Kills. [default: 30]"
)
CELLS = click.Option(
    ["--cells"],
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add to this file as each ends, and do not run again what it holds.",
)
MODEL = click.Option(["--model"], metavar="NAME_OR_FOLDER", help="The checkpoint, as for `papers`.")
SCALES = click.Choice(["1", "2", "4", "8", "16", "32"])

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "crypto": Benchmark(
            "benchmarks.micro.crypto",
            "A protected sum: bytes and CPU, ours beside NVFLARE's way.",
            {"values": 100_000, "repeats": 1},
        ),
        "overhead": Benchmark(
            "benchmarks.federations.overhead",
            "What a round takes over a bare training loop.",
            {"parties": 3, "records": 64, "rounds": 2, "repeats": 1},
        ),
        "memory": Benchmark(
            "benchmarks.micro.memory",
            "The coordinator's peak memory as cohorts grow.",
            {"values": 100_000, "parties": (4, 16)},
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
            "What DP-SGD costs over plain training.",
            {"records": 96, "repeats": 1, "layers": 1},
        ),
        "savings": Benchmark(
            "benchmarks.micro.savings",
            "What bfloat16, checkpointing and batches of one length save.",
            {"records": 32, "repeats": 1, "prompts": 24, "model": "tiny"},
        ),
        "statistics": Benchmark(
            "benchmarks.federations.statistics",
            "Questions over ten hospitals, and a thousand that attack.",
            {"parties": 3, "records": 100, "questions": 20},
        ),
        "wire": Benchmark(
            "benchmarks.federations.wire",
            "What FedKD sends, beside plain FedAvg of its teacher.",
            {"records": 16, "rounds": 2, "model": "tiny", "scale": 8},
        ),
        "adapters": Benchmark(
            "benchmarks.federations.adapters",
            "What adapters of ModernBERT-base send and cost, with DP-SGD.",
            {"scale": 4, "tokens": 16, "dp_records": 64, "repeats": 1},
        ),
        "layers": Benchmark(
            "benchmarks.federations.layers",
            "InclusiveFL's sums over BERT-base's layers, beside training.",
            {"scale": 16, "batch": 4},
            (
                click.Option(
                    ["--scale"],
                    type=SCALES,
                    callback=lambda _ctx, _option, text: text and int(text),
                    help="Divide BERT-base's widths; 1 takes 14 GB. [default: 2]",
                ),
            ),
        ),
        "interactive": Benchmark(
            "benchmarks.federations.interactive",
            "What protection adds to a step of FedID. --quick leaves whole rounds out.",
            {"steps": 5, "turns": 2, "federate": False},
        ),
        "round": Benchmark(
            "benchmarks.federations.round",
            "Where a simulated round's time goes, for every algorithm.",
            {"records": 16, "batch": 8, "model": "tiny", "names": ("fedavg", "fedkd", "fedid")},
            (MODEL,),
        ),
        "audits": Benchmark(
            "benchmarks.federations.audits",
            "How long audits take. --quick leaves the full one out.",
            {"full": False, "words": 3_000, "turns": 1},
        ),
        "quick-audit": Benchmark(
            "benchmarks.federations.quick_audit",
            "How long quick audits take. --quick leaves out the checkpoint of six layers.",
            {"large": False},
        ),
        "leakage": Benchmark(
            "benchmarks.federations.leakage",
            "Membership attacks on runs of different ε, as a curve.",
            {"size": 16, "rounds": 1, "epochs": 1, "models": (4, 2), "epsilons": (4.0, None)},
            (
                click.Option(
                    ["--pages"],
                    metavar="FOLDER",
                    type=click.Path(file_okay=False, path_type=Path),
                    help="Keep the runs, their pages and the picture here.",
                ),
            ),
        ),
        "engine": Benchmark(
            "benchmarks.micro.engine.compare",
            "What FLARE costs beside one process. --quick leaves rounds and start out.",
            {"repeats": 20, "large_repeats": 2, "whole": False},
        ),
        "evaluation": Benchmark(
            "benchmarks.federations.evaluation",
            "What an evaluation takes over its models' forward passes.",
            {"records": 16, "repeats": 1, "model": "tiny"},
        ),
        "guard": Benchmark(
            "benchmarks.federations.guard",
            "What a guard does against one bad hospital of eight.",
            {"sets": ("built-in ade",), "seeds": 1, "rounds": 3, "records": 240},
            (CELLS,),
        ),
        "network": Benchmark(
            "benchmarks.federations.network",
            "What a hospital's line costs pilots of FedKD and FedID. It needs root and iproute2.",
            {"rounds": 4},
            (
                click.Option(["--rounds"], type=click.IntRange(min=3), help="[default: 8]"),
                click.Option(
                    ["--loss"],
                    metavar="SHARE",
                    type=click.FloatRange(0, 0.5),
                    help="Of packets, over bad lines. [default: 0.01]",
                ),
                MODEL,
                click.Option(
                    ["--congestion"],
                    metavar="NAME",
                    help="TCP's control of it: bbr, cubic. [default: the machine's]",
                ),
            ),
        ),
        "crowd": Benchmark(
            "benchmarks.federations.crowd",
            "A pilot of thirty hospital processes: memory, CPU, rounds.",
            {"hospitals": 4, "rounds": 2},
        ),
        "blackouts": Benchmark(
            "benchmarks.federations.blackouts",
            "Pilots over blackouts of many minutes. It needs root and iproute2.",
            {"short": 0.5, "long": 0.7},
        ),
        "startup": Benchmark(
            "benchmarks.micro.startup",
            "How long the import and the help text take.",
            {"repeats": 3},
        ),
        "peers": Benchmark(
            "benchmarks.peers.compare",
            "The same job on other systems and here, side by side.",
            {"names": ("ours", "ours-simulated"), "turns": 1, "rounds": 4, "records": 32},
            (
                click.Option(
                    ["--environments"],
                    metavar="FOLDER",
                    help="Where `python -m benchmarks.peers.environments FOLDER` installed them."
                    " [default: peers]",
                ),
                click.Option(
                    ["--only", "names"],
                    metavar="WAY",
                    multiple=True,
                    callback=lambda _ctx, _option, names: names or None,
                    help="These ways of `benchmarks.peers.ways` alone; may be repeated.",
                ),
                click.Option(
                    ["--turns"],
                    metavar="COUNT",
                    type=click.IntRange(min=1),
                    help="Runs of each. [default: 5]",
                ),
                click.Option(
                    ["--sites"],
                    metavar="COUNT",
                    type=click.IntRange(min=3),
                    help="[default: 4; simulated: 100]",
                ),
                click.Option(
                    ["--records"],
                    metavar="COUNT",
                    type=click.IntRange(min=1),
                    help="Of each site. [default: 120; simulated: 24]",
                ),
                click.Option(
                    ["--rounds"],
                    metavar="COUNT",
                    type=click.IntRange(min=3),
                    help="[default: 4]",
                ),
                click.Option(
                    ["--model"],
                    metavar="NAME",
                    help="tiny, 1M, 10M or 100M values, or a checkpoint. [default: tiny]",
                ),
                click.Option(
                    ["--data"],
                    metavar="FOLDER",
                    help="Data sets, of which ade_cls is taken. [default: built-in notes]",
                ),
                click.Option(["--simulated"], is_flag=True, help="Many clients in one process."),
                click.Option(
                    ["--threads"],
                    metavar="COUNT",
                    type=click.IntRange(min=1),
                    help="Of each process. [default: 1]",
                ),
            ),
        ),
        "defaults": Benchmark(
            "benchmarks.evidence.defaults",
            "What every algorithm learns with nothing but records given.",
            {"sets": ("built-in ade",), "only": "fedavg", "records": 96},
            (
                click.Option(
                    ["--set", "sets"],
                    multiple=True,
                    callback=lambda _ctx, _option, names: names or None,
                    help="Which set, such as sst2. Can be repeated. [default: all]",
                ),
                click.Option(["--only"], metavar="TEXT", help="Algorithms with this in the name."),
                click.Option(
                    ["--work"],
                    metavar="FOLDER",
                    type=click.Path(file_okay=False, path_type=Path),
                    help="Where finished cells are kept. [default: docs/results/defaults]",
                ),
            ),
        ),
        "tuned": Benchmark(
            "benchmarks.federations.tuned",
            "FedAvg's defaults and what tune finds, beside a grid.",
            {"corpora": ("ade",), "size": 16, "passes": (1,)},
            (
                click.Option(
                    ["--corpus", "corpora"],
                    type=click.Choice(("ade", "pairs", "ner")),
                    multiple=True,
                    callback=lambda _ctx, _option, names: names or None,
                    help="Which built-in records. Can be repeated. [default: all]",
                ),
                click.Option(["--seed"], type=int, help="Of records and models. [default: 7]"),
            ),
        ),
        "breaking": Benchmark(
            "benchmarks.peers.breaking",
            "What kills, lies and taps do to runs, of peers and here.",
            {"names": ("ours",), "mishaps": ("nan",), "records": 32},
            (
                click.Option(
                    ["--environments"],
                    metavar="FOLDER",
                    help="Where `python -m benchmarks.peers.environments FOLDER` installed them."
                    " [default: peers]",
                ),
                click.Option(
                    ["--work"],
                    metavar="FOLDER",
                    help="Keeps what runs leave here; those that it holds are not run again.",
                ),
            ),
        ),
        "tag": Benchmark(
            "benchmarks.micro.tag",
            "What a sum's tag costs: as it is, as it was, and none.",
            {"parties": 4, "values": 100_000, "repeats": 2},
        ),
        "inquiry": Benchmark(
            "benchmarks.micro.inquiry",
            "What it costs to find whose tag was wrong, beside a sum.",
            {"parties": 4, "values": 20_000, "repeats": 1},
        ),
        "storms": Benchmark(
            "benchmarks.federations.storms",
            "Pilots in which one lies and others are killed, by seed.",
            {"storms": 2},
            (STORMS, SEED, WITHIN, CELLS),
        ),
        "process-storms": Benchmark(
            "benchmarks.federations.process_storms",
            "The same over processes and TLS, kill -9 included.",
            {"storms": 1},
            (
                STORMS,
                SEED,
                WITHIN,
                CELLS,
                click.Option(
                    ["--jobs"], type=click.IntRange(min=1), help="At a time. [default: 1]"
                ),
            ),
        ),
        "fuzz": Benchmark(
            "benchmarks.micro.fuzz",
            "Throw mutated frames at both ends of a run.",
            {"mutants": 3_000},
            (
                click.Option(
                    ["--mutants"],
                    metavar="COUNT",
                    type=click.IntRange(min=1),
                    help="At least so many. [default: 1000000]",
                ),
                SEED,
            ),
        ),
    }
)
# Minutes or hours: not among `all`.
ALONE = frozenset(
    {
        "blackouts",
        "breaking",
        "crowd",
        "defaults",
        "fuzz",
        "network",
        "peers",
        "process-storms",
        "storms",
        "tuned",
    }
)
