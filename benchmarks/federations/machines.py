"""A pilot's machines as processes of their own: started from a warm one, killed as by the system.

What is imported is imported once (`forkserver`); all else is a process's own, and so is its end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from benchmarks.federations.lies import Liar, lying

IMPORTS = [  # what both commands need; none of them starts a thread
    "benchmarks.federations.machines",
    "opacus",
    "secure_fl.algorithms.fedavg",
    "secure_fl.cli.coordinate",
    "secure_fl.cli.join",
    "secure_fl.cli.main",
    "secure_fl.engines.flare.hub",
    "secure_fl.learning.dp.dp_sgd",
    "secure_fl.pilot.hospital",
    "secure_fl.pilot.coordinator_process",
    "secure_fl.pilot.site_memory",
]


@dataclass
class Machine:
    """A machine that runs one command in its folder, as often as it is started."""

    folder: Path
    command: Sequence[str]
    liar: Liar | None = None  # who sits at it
    starts: int = 0
    kills: int = 0
    _process: ForkServerProcess = field(init=False)

    @property
    def log(self) -> Path:
        """What its processes printed, one after the other."""
        return self.folder / "log"

    @property
    def code(self) -> int | None:
        """How its last process ended; None: it runs."""
        return self._process.exitcode

    def start(self) -> None:
        """Begin, or begin again."""
        self.starts += 1
        told = (os.fspath(self.folder), tuple(self.command), os.fspath(self.log), self.liar)
        self._process = _warm().Process(target=_run, args=told)
        self._process.start()

    def kill(self) -> None:
        """End it at once, wherever it is; not a line of its own is run any more."""
        self.kills += 1
        self._process.kill()
        self._process.join()

    def wait(self, seconds: float) -> int | None:
        """How it ended, if it does within so many seconds."""
        self._process.join(seconds)
        return self.code


def _warm() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    return context


def _run(folder: str, command: tuple[str, ...], log: str, liar: Liar | None) -> None:
    """A process's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(folder)
    printed = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.argv = ["secure-fl", *command]
    import torch

    from secure_fl.cli.main import main

    torch.set_num_threads(1)
    with lying(replace(liar)) if liar is not None else nullcontext():  # it reads its note
        main()
