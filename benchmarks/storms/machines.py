"""Machines of a pilot as processes that are forked from a server with all imports."""

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

from benchmarks.storms.lies import Liar, lying

IMPORTS = [  # of both commands; none of them starts a thread
    "benchmarks.storms.machines",
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
    liar: Liar | None = None  # the liar at this machine
    starts: int = 0
    kills: int = 0
    _process: ForkServerProcess = field(init=False)

    @property
    def log(self) -> Path:
        """The output of all its processes."""
        return self.folder / "log"

    @property
    def code(self) -> int | None:
        """The exit status of its last process; None if it runs."""
        return self._process.exitcode

    def start(self) -> None:
        """Start a process."""
        self.starts += 1
        arguments = (os.fspath(self.folder), tuple(self.command), os.fspath(self.log), self.liar)
        self._process = _warm().Process(target=_run, args=arguments)
        self._process.start()

    def kill(self) -> None:
        """Kill the process."""
        self.kills += 1
        self._process.kill()
        self._process.join()

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the process, and return its exit status."""
        self._process.join(seconds)
        return self.code


def _warm() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    return context


def _run(folder: str, command: tuple[str, ...], log: str, liar: Liar | None) -> None:
    """Run one command in this process, with the liar's changes."""
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
