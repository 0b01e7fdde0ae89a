"""A student that every hospital distils from the finished model, on public texts.

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network. arXiv 1503.02531, with a
temperature of 1. The teacher is the model that all hospitals have. Texts, first weights and order
of batches are public. So every hospital computes the same student, and nothing is sent. Nothing
compares the students either: machines that round differently have slightly different ones. A
student is a function of the released model, so ε of the model covers it (post-processing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from secure_fl.algorithms.public_distillation import PublicRecords, cross_entropy, logits
from secure_fl.algorithms.settings import Teaching
from secure_fl.algorithms.updates import digest
from secure_fl.data.examples import overlap
from secure_fl.errors import DataError
from secure_fl.learning.learning_rates import pace
from secure_fl.learning.local_training import make_optimizer, public_step
from secure_fl.learning.site import Site

if TYPE_CHECKING:
    from secure_fl.settings import ModelSettings

STUDENT = "student"  # its name among the results
BATCH = 8  # public texts of a step, at most


class PublicStudent:
    """The student of a run at one site; it is trained again only if its teacher changes."""

    def __init__(self, site: Site, settings: ModelSettings, epochs: int) -> None:
        self._site, self._settings, self._epochs = site, settings, epochs
        self._records = PublicRecords(site, min(BATCH, site.training.batch_size))
        require_public(site)
        self._model: nn.Module = site.model(settings)  # refuses more layers than there are
        self._teacher = b""

    @classmethod
    def of(cls, site: Site, cfg: Teaching) -> PublicStudent | None:
        """Make the student of these settings, or refuse it before anything is spent."""
        settings = cfg.student(site.model_settings)
        return None if settings is None else cls(site, settings, cfg.student_epochs)

    def taught_by(self, teacher: nn.Module) -> nn.Module:
        """Return the student of this teacher."""
        teacher_digest = digest(teacher.state_dict())
        if teacher_digest != self._teacher:
            key = (STUDENT, teacher_digest, self._site.public_digest, self._epochs)
            self._model = self._site.once(key, lambda: self._taught(teacher))
            self._teacher = teacher_digest
        return self._model

    def _taught(self, teacher: nn.Module) -> nn.Module:
        site, records = self._site, self._records
        targets = logits(site, teacher, records, records.every()).softmax(-1).to(site.device)
        model: nn.Module = site.model(
            self._settings
        ).eval()  # dropout would differ between hospitals
        with site.recorder.phase("train"):
            training = site.training.model_copy(update={"learning_rate": None})
            optimizer = make_optimizer(model, training, alone=True)
            every = [b for epoch in range(self._epochs) for b in records.batches(0, epoch)]
            for done, rows in enumerate(every):
                x, y = records.read(rows), targets[rows.to(site.device)]
                pace(optimizer, training, done / len(every))
                public_step(site, optimizer, lambda: cross_entropy(site.task.forward(model, x), y))  # noqa: B023 - called at once
        return model

    def score(self, teacher: nn.Module, round: int) -> None:
        """Measure the student of this teacher."""
        self._site.score(self.taught_by(teacher), round, STUDENT)

    def deliver(self, teacher: nn.Module) -> None:
        """Name the student as a product of the run, equal at all parties that round alike."""
        self._site.deliver(self.taught_by(teacher), STUDENT)


def require_public(site: Site) -> None:
    """Refuse public texts that are training records: results would depend on records by them."""
    if count := overlap(site.silo.train, site.silo.public):
        raise DataError(
            f"{count} public text{'s are' if count > 1 else ' is'} also in the training records",
            fix="remove the training records from the public set",
            party=site.name,
            split="public",
        )
