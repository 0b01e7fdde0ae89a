"""Features of a frozen encoder: public centre and directions, and a site's training rows.

The directions are principal components of public texts. Every hospital computes all of them, and
sends a part: encoders round differently on different machines, and all must use the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from secure_fl.algorithms.exact import orthonormal
from secure_fl.errors import CohortError
from secure_fl.learning.anatomy import body_of
from secure_fl.learning.builtin import bell
from secure_fl.learning.local_training import autocast
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Batch, Encoded
from secure_fl.learning.tasks.batches import by_record, in_parts, packed
from secure_fl.learning.tasks.heads import ProbeClassifier
from secure_fl.learning.tasks.task import inference
from secure_fl.learning.tasks.token_table import IGNORED
from secure_fl.party.cohort import Cohort

CONSTANT = 0.3  # last column of the features; its weight is the bias
POWER = 3  # products with the covariance, which turn random directions to the principal ones
STEPS = 127  # of the largest value of a direction


class Rows(NamedTuple):
    """A site's training rows: one for each text, or for each word of a sentence."""

    x: Tensor  # features, then the constant
    y: Tensor  # number of the class; regression: score; several labels: a row of 0 and 1


class Probing(ProbeClassifier):
    """A probe that encodes each text once in a run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._seen: dict[bytes, Tensor] | None = {}  # features by batch; None: of no batch

    def features(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        """Return the features of a batch, from memory if it was encoded before."""
        if self._seen is None:
            return super().features(input_ids, attention_mask, **options)
        key = b"".join(t.cpu().numpy().tobytes() for t in (input_ids, attention_mask))
        if key not in self._seen:
            features = super().features(input_ids, attention_mask, **options)
            self._seen[key] = features.float().cpu()
        return self._seen[key].to(input_ids.device)

    def forget(self) -> None:
        """Drop all features, and keep none from now on."""
        self._seen = None


def probe_of(site: Site, components: int) -> Probing:
    """Build the model: this party's encoder, and a head of zeros."""
    body, task = body_of(site.model()), site.task
    if getattr(body, "pooler", None) is not None:
        body.pooler = None  # nothing would train it
    words = task.head == "token"
    whole = Probing(body, task.outputs_per_row, words=words)
    width, texts = len(whole.center), len(site.silo.public)
    cut = components < width and texts >= 2 * components  # of fewer texts, directions are random
    model = Probing(body, task.outputs_per_row, components, words=words) if cut else whole
    for weight in model.classifier.parameters():
        weight.data.zero_()
    model.requires_grad_(False)
    return model.to(site.device).eval()


async def public_directions(cohort: Cohort, site: Site, model: Probing) -> dict[str, Tensor]:
    """Agree on the centre of public texts and, if features are cut, on their main directions."""
    if not site.silo.public:
        return {"center": model.center.cpu()}
    public = ("hidden", site.public_digest, str(site.device), site.bfloat16)
    hidden = site.once(
        public, lambda: torch.cat([x for x, _ in _encoded(site, model, site.public, model.hidden)])
    )
    center, basis = hidden.double().mean(0), None
    if model.basis is not None:
        basis = bell(model.basis.shape, f"{site.seed}/probe", 1.0).double()
        hidden -= center
        covariance = (hidden.T @ hidden).double()
        for _ in range(POWER):
            basis = orthonormal(covariance @ basis)
    return await _assembled(cohort, center, basis)


async def _assembled(cohort: Cohort, center: Tensor, basis: Tensor | None) -> dict[str, Tensor]:
    """Take each direction from one hospital, in turns, and so for the values of the centre.

    They are public, and nearly equal at all hospitals. Eight bits are enough for a direction.
    """
    directions = torch.zeros(0, len(center)) if basis is None else basis.T.float()
    parties, received = cohort.parties, dict[str, dict[str, Any]]()
    while not received or not set(parties) <= received.keys():  # again if a hospital drops out
        parties = cohort.parties
        turn = slice(parties.index(cohort.me), None, len(parties))
        largest = directions[turn].abs().amax(1, keepdim=True).clamp(min=1e-30)
        steps = (directions[turn] / largest * STEPS).round().to(torch.int8)
        own = {"center": center[turn].float(), "largest": largest, "steps": steps}
        received = await cohort.share(
            {f"public|{name}": part.numpy() for name, part in own.items()}
        )
    shared, rows = torch.zeros(len(center)), torch.zeros_like(directions)
    for place, party in enumerate(parties):
        turn = slice(place, None, len(parties))
        shared[turn], rows[turn] = _checked(received[party], party, shared[turn], rows[turn])
    return {"center": shared} | ({} if basis is None else {"basis": orthonormal(rows.T)})


def _checked(
    received: dict[str, Any], party: str, center: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Read a hospital's part, which must have these shapes."""
    names = [f"public|{name}" for name in ("center", "largest", "steps")]
    found = [np.asarray(received.get(name, math.nan), np.float32) for name in names]
    shapes = [(len(center),), (len(rows), 1), tuple(rows.shape)]
    if [part.shape for part in found] != shapes or not all(np.isfinite(p).all() for p in found):
        raise CohortError(
            "this hospital sent directions of public texts that cannot be read",
            fix="compare models and library versions with this party",
            party=party,
        )
    own, largest, steps = (torch.from_numpy(part) for part in found)
    return own, steps * (largest / STEPS)


def training_rows(site: Site, model: Probing) -> Rows:
    """Encode the training records."""
    xs, batches = zip(*_encoded(site, model, site.train, model.features), strict=True)
    x, y = torch.cat(xs), torch.cat([of_rows(batch["labels"], batch) for batch in batches])
    if not model.words:  # in the order of the records, which DP-SGD samples by number
        back = by_length(site.train).argsort()
        x, y = x[back], y[back]
    y = y.float() if y.dtype == torch.bool else y
    return Rows(torch.cat([x, torch.full((len(x), 1), CONSTANT)], dim=1), y)


def _encoded(
    site: Site, model: Probing, texts: Encoded, encode: Callable[..., Tensor]
) -> Iterator[tuple[Tensor, Batch]]:
    """Encode texts; yield the rows of each batch."""
    with site.recorder.phase("encode"), inference(model), autocast(site):
        for start in range(0, len(order := by_length(texts)), site.at_once()):
            indices = order[start : start + site.at_once()]
            batch = texts.batch(indices, device=site.device)
            parts = [encode(**part).float() for part in in_parts(packed(batch))]
            yield of_rows(by_record(torch.cat(parts), batch, words=model.words), batch), batch


def by_length(texts: Encoded) -> Tensor:
    """Order texts by length, so that batches have little padding."""
    return texts.sizes().argsort(stable=True)


def of_rows(values: Tensor, batch: Batch) -> Tensor:
    """Select one value for each text, or for each word at its first token; on the CPU."""
    return (values[batch["words"] != IGNORED] if "words" in batch else values).cpu()
