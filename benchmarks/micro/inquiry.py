"""What it costs to find whose tag was wrong: CPU of all, beside the sum that it is about.

Two federations in this process: in one all goes well, in the other the last member changes a slot
of what it tagged, so that all uploads are looked at. The difference is the inquiry.
"""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.report import Report, Target, table
from secure_fl.crypto.sealing.masking import Slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.federation.keys import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.testing.harness import federate

MOST = 3.0  # times a sum


def measure(
    *, parties: int = 8, values: int = 1_000_000, repeats: int = 3, seed: int = 0
) -> Report:
    """Measure both in turns."""
    started = time.perf_counter()
    names = [f"p{k:03}" for k in range(parties)]
    keys = make_keys("he+secagg", names, None)
    vector = np.random.default_rng(seed).uniform(-1, 1, values).astype(np.float32)

    async def program(cohort: Cohort) -> None:
        await cohort.sum({"x": vector}, bound=1.0)

    def once(liar: str) -> tuple[float, str]:
        honest = SecureSumInProgress._masked

        def masked(sum: SecureSumInProgress, *what: Any) -> Slots:
            slots = honest(sum, *what)
            if sum._context.me == liar:
                slots[0] = (slots[0] + np.uint64(1)) % np.uint64(COHORT.modulus)
            return slots

        with patch.object(SecureSumInProgress, "_masked", masked):
            began = time.process_time()
            programs = dict.fromkeys(names, program)
            out = federate(programs, mode="he+secagg", bits=8, keys=keys, catch=True)
            return time.process_time() - began, out.sessions[names[0]].convicted

    turns = [(once(""), once(names[-1])) for _ in range(repeats)]
    sums = [good for (good, _), _ in turns]
    inquiries = [bad - good for (good, _), (bad, _) in turns]
    wrong = sum(nobody != "" or found != names[-1] for (_, nobody), (_, found) in turns)
    ratio = float(np.median(inquiries) / np.median(sums))
    results = {"sum_cpu": sums, "inquiry_cpu": inquiries, "ratio": ratio, "wrong": wrong}
    cells = [(f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}") for a, b in zip(sums, inquiries, strict=True)]
    return Report(
        "inquiry",
        {"parties": parties, "values": values, "repeats": repeats},
        seed,
        results,
        [table("CPU seconds of all", ("a sum", "an inquiry", "times a sum"), cells)],
        (
            Target("an inquiry, times a sum", MOST, ratio),
            Target("turns in which another was named, or nobody", 0, wrong),
        ),
        seconds=time.perf_counter() - started,
    )
