"""The process that fuzzes targets, guided by coverage of the product's code.

    python -m benchmarks.fuzzing.worker CPU_SECONDS FOLDER TARGET...

It collects new inputs in FOLDER/TARGET/corpus and findings in FOLDER/TARGET/findings, and writes
FOLDER/TARGET/result.json. Its memory is limited, so an input that makes a decoder ask for much
more than its own size is a finding.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

INSTRUMENTED = ["secure_fl", "tomllib"]
MEMORY = 2**31  # bytes that decoders may ask for in addition to those of the imports
LARGEST = 2**17  # bytes of an input


class Worker:
    """The counts, findings and end of one target's fuzzing."""

    def __init__(self, name: str, seconds: float, folder: Path) -> None:
        """Import the target and write its genuine inputs and its committed corpus."""
        from benchmarks.fuzzing.corpus import committed
        from benchmarks.fuzzing.targets import TARGETS

        self.target, self.seconds, self.folder = TARGETS[name], seconds, folder
        self.corpus, self.executions, self.slowest = folder / "corpus", 0, 0.0
        self.findings: dict[str, bytes] = {}
        self.corpus.mkdir(parents=True, exist_ok=True)
        for data in [*self.target.seeds().values(), *committed(name).values()]:
            (self.corpus / sha256(data).hexdigest()[:16]).write_bytes(data)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        self.began = time.process_time()

    def run(self, data: bytes) -> None:
        """Try one input; end the process if its time is over."""
        from benchmarks.fuzzing.target import attempt

        tried = attempt(self.target, data)
        self.executions += 1
        self.slowest = max(self.slowest, tried.seconds)
        if tried.finding:
            known = self.findings.get(tried.finding)
            if known is None or len(data) < len(known):
                self.findings[tried.finding] = data
                self.save()
        if self.executions % 256 == 0 and time.process_time() - self.began > self.seconds:
            self.save()
            os._exit(0)  # libFuzzer has no other end without an error

    def save(self) -> None:
        """Write counts and findings."""
        found = self.folder / "findings"
        found.mkdir(exist_ok=True)
        for data in self.findings.values():
            (found / sha256(data).hexdigest()[:16]).write_bytes(data)
        result = {
            "executions": self.executions,
            "cpu_seconds": time.process_time() - self.began,
            "slowest_cpu_seconds": self.slowest,
            "findings": sorted(self.findings),
        }
        (self.folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")

    def mutator(self, atheris: Any) -> Any:
        """Make the mutator of inputs."""
        from benchmarks.fuzzing.mutate import of_tree

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            tree = of_tree(self.target.form, data, seed)
            mutant: bytes = atheris.Mutate(data, most) if tree is None else tree[:most]
            return mutant

        return mutate


def fuzz(name: str, seconds: float, folder: Path) -> None:
    """Fuzz one target until the CPU time is over, which ends the process."""
    atheris: Any = import_module("atheris")

    worker = Worker(name, seconds, folder)
    options = [
        "-rss_limit_mb=0",  # the limit of the address space raises errors that can be counted
        "-timeout=1200",
        "-verbosity=0",
        f"-max_len={LARGEST}",
        f"-seed={random.Random(name).getrandbits(31)}",  # noqa: S311 - it chooses mutations
        f"-artifact_prefix={folder}/",
        str(worker.corpus),
    ]
    atheris.Setup([name, *options], worker.run, custom_mutator=worker.mutator(atheris))
    atheris.Fuzz()


def main(seconds: float, folder: Path, names: list[str]) -> None:
    """Import the product once, and fuzz one target after the other in processes of their own."""
    atheris: Any = import_module("atheris")

    with atheris.instrument_imports(include=INSTRUMENTED):
        import benchmarks.fuzzing.targets  # noqa: F401
    for name in names:
        if (child := os.fork()) == 0:
            fuzz(name, seconds, folder / name)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
