"""What the tag of a sealed sum costs: with it, without, and as it was before it covered masks.

The three take turns in one process. A tag over what is masked with peers lets an upload be checked
alone (`crypto.blame.inquiry`); before, a tag was over the values, and all masks lay over it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.micro.ways import Sample, ours
from benchmarks.report import Report, Target, table
from secure_fl.crypto.sealing import tags
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress, _add
from secure_fl.federation.keys import make_keys
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group

MOST = 1.03  # times sealing and adding in the other ways
NOW, BEFORE, NONE = "over masked values", "over values, as before", "none"


def measure(
    *, values: int = 1_000_000, parties: int = 8, repeats: int = 12, seed: int = 0
) -> Report:
    """Measure all three in turns."""
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(0, 1e-3, values).astype(np.float32) for _ in range(parties)]
    names = [f"p{number}" for number in range(parties)]
    way = ours("he+secagg", 8, make_keys("he+secagg", names, None))
    samples: dict[str, list[Sample]] = {name: [] for name in TAGS}
    for turn in range(repeats):
        for name in (list(TAGS), list(TAGS)[::-1])[turn % 2]:
            with TAGS[name]():
                samples[name].append(way(vectors))
    costs = {name: _parts(found) for name, found in samples.items()}
    ratios = {name: sum(costs[NOW][:2]) / sum(costs[name][:2]) for name in (BEFORE, NONE)}
    rows = [
        (
            name,
            *(f"{1e9 * part / values:.1f}" for part in costs[name]),
            "{:.1f} to {:.1f}".format(*(1e9 * part / values for part in _middle(found))),
            f"{ratios[name]:.3f}" if name in ratios else "",
        )
        for name, found in samples.items()
    ]
    columns = ("tag", "seal ns", "add ns", "open ns", "half of all seals", "with it, of this")
    wrong = sum(sample.exact is False for found in samples.values() for sample in found)
    return Report(
        "tag",
        {"values": values, "parties": parties, "repeats": repeats},
        seed,
        {"cpu_seconds": costs, "ratios": ratios, "order": "seal, add, open"},
        [table(f"one sum, per value ({values:,} values, {parties} parties)", columns, rows)],
        (
            Target("sealing and adding, of that with the tag before", MOST, ratios[BEFORE]),
            Target("sealing and adding, of that without a tag", MOST, ratios[NONE]),
            Target("sums that were not exact", 0, wrong),
        ),
        seconds=time.perf_counter() - started,
    )


def _middle(found: list[Sample]) -> tuple[float, float]:
    """Between what the middle half of all sealings took."""
    low, _, high = quantiles([seconds for sample in found for seconds in sample.seal], n=4)
    return low, high


def _parts(found: list[Sample]) -> tuple[float, float, float]:
    """CPU seconds of a party's sealing, of adding it, and of opening."""
    return (
        median(seconds for sample in found for seconds in sample.seal),
        median(sample.add / len(sample.seal) for sample in found),
        median(sample.open for sample in found),
    )


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _over_values() -> Iterator[None]:
    def masked(
        sum: SecureSumInProgress,
        slots: Slots,
        group: Group,
        stream: StreamId,
        salts: Mapping[str, bytes],
    ) -> Slots:
        context, keys, t = sum._context, sum._keys, COHORT.modulus
        assert keys is not None  # noqa: S101
        tag = tags.make(context.keys.tag_key, slots, [context.numbers[context.me]], t, stream)
        slots = np.append(slots, np.uint64(tag))
        host = sum._rule.audience == Audience.HOST
        masks = keys.mask(group.owners, stream, slots.size, t, for_host=host, salts=salts)
        _add(slots, masks)
        return slots

    with patch.object(SecureSumInProgress, "_masked", masked):
        yield


@contextmanager
def _without() -> Iterator[None]:
    """As before, and nobody makes or checks a tag."""

    def nothing(*_: Any, **__: Any) -> int:
        return 0

    with _over_values(), patch.object(tags, "make", nothing), patch.object(tags, "check", nothing):
        yield


TAGS: Mapping[str, Callable[[], Any]] = {NOW: _as_it_is, BEFORE: _over_values, NONE: _without}
