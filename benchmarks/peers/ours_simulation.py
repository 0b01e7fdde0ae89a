"""The job in one process by our library, as `inside` has it for the others."""

from __future__ import annotations

import json
import time

from benchmarks.peers.inside.job import Job, trained
from benchmarks.peers.prepare import LENGTH, members
from secure_fl import FedAvg, Federation, ModelSettings, TaskSettings, TrainingSettings
from secure_fl.events import Event, RoundStarted
from secure_fl.features.batched_simulation.trainer import BatchedTraining
from secure_fl.settings import ProtectionSettings


def main() -> None:
    """Run the job that the environment names."""
    job = Job()
    labels = json.loads((job.folder / "job.json").read_text())["labels"]
    begins: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundStarted):
            begins.append(time.time())

    result = Federation(
        members(job.folder),
        FedAvg(rounds=job.rounds, epochs=1),
        task=TaskSettings(labels=labels, max_length=LENGTH),
        model=ModelSettings(name=str(job.folder / "model"), freeze_embeddings=True),
        training=TrainingSettings(
            learning_rate=job.learning_rate,
            batch_size=job.batch_size,
            schedule="constant",
            pooled_scores=False,  # nobody has records to score by
        ),
        protection=ProtectionSettings(mode="none"),
        seed=0,
        trainer=BatchedTraining,
        listener=listen,
    ).run()
    job.finish(trained(result.model))
    job.note_rounds(begins)


if __name__ == "__main__":
    main()
