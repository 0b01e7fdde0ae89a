"""One sum in each of the ways that the crypto benchmark compares, with its CPU time and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.micro import nvflare_way
from benchmarks.micro.halves import HOST, Halves
from benchmarks.report import cpu
from secure_fl.crypto.sealing import packing
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.federation.keys import make_keys
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group, Rule, Vector
from secure_fl.settings import Protection, ProtectionSettings

Reals: TypeAlias = NDArray[np.float64]

NAME = "x"
HOST_BOUND = 0.01  # what bounds the values of a host sum


@dataclass(frozen=True, slots=True)
class Sample:
    """One sum: CPU seconds, bytes of one party, and what came out."""

    seal: Sequence[float]  # of each party
    add: float  # of the coordinator, for all parties
    open: float
    up: int
    down: int
    opened: Reals
    exact: bool | None = None  # the opened sum is the sum of the integers; None: no integers


Way: TypeAlias = Callable[[Sequence[Vector]], Sample]


def every_way(parties: int) -> Mapping[str, tuple[int | None, Way]]:
    """Every way by its name, with its bits; the first is what a run does by default."""
    names = [f"p{number}" for number in range(parties)]
    keys = make_keys("he+secagg", names, None)
    context = nvflare_way.make_context()
    ways: dict[str, tuple[int | None, Way]] = {
        f"he+secagg, {bits} bits": (bits, ours("he+secagg", bits, keys))
        for bits in (8, 4, 6, 12, 16, 24)
    }
    return ways | {
        "secagg, 8 bits": (8, ours("secagg", 8, make_keys("secagg", names, None))),
        "he, 8 bits": (8, ours("he", 8, keys)),
        "host sum by masks, 16 bits": (
            16,
            ours("he+secagg", 16, make_keys("he+secagg", [*names, HOST], HOST)),
        ),
        "NVFLARE's way, 1 tensor": (None, nvflare(context, 1)),
        "NVFLARE's way, 50 tensors": (None, nvflare(context, 50)),
    }


def ours(mode: Protection, bits: Any, keys: Mapping[str, PartyKeys]) -> Way:
    """A sum through the real halves; if `keys` has a host, a sum for the host alone."""
    protection = ProtectionSettings(mode=mode, bits=bits, min_cohort=2)
    names = tuple(name for name in keys if name != HOST)
    rule = Rule(Audience.HOST, bound=HOST_BOUND) if HOST in keys else Rule(carry=True)

    def way(vectors: Sequence[Vector]) -> Sample:
        halves = Halves(protection, names, HOST if HOST in keys else None, keys)
        groups = {n: [Group(names, {NAME: v})] for n, v in zip(names, vectors, strict=True)}
        if rule.bound is None:
            halves.teach(groups, rule)
        else:
            groups[HOST] = groups[names[0]]
        return _one_sum(halves, groups, rule)

    return way


def _one_sum(halves: Halves, groups: Mapping[str, Sequence[Group]], rule: Rule) -> Sample:
    spent = {name: cpu(halves.offer, name)[0] for name in halves.members}
    for name in halves.members:
        spent[name] += cpu(halves.accept, name)[0]
    adding, total = cpu(halves.total, rule.audience)
    expected = _expected(halves, groups, rule)
    up, begun = 0, {}
    for name in halves.members:
        seconds, begun[name] = cpu(halves.sums[name].begin, groups[name], rule, (0, 1))
        spent[name] += seconds
        upload = begun[name].upload
        if name != halves.host:
            up = len(upload.data)
            adding += cpu(total.add, name, upload.segments, upload.data)[0]
    shares = {}
    for name in halves.members if halves.masked else ():
        seconds, revealed = cpu(halves.reveal, begun[name])
        spent[name] += seconds
        if name != halves.host:
            shares[name] = revealed
    seconds, result = cpu(total.result, halves.members, shares)
    reader, (data,) = halves.host or halves.parties[0], result.values()
    opening, opened = cpu(begun[reader].open, [data], halves.members)
    return Sample(
        [spent[name] for name in halves.parties],
        adding + seconds,
        opening,
        up,
        len(data),
        opened[NAME],
        exact=bool(np.array_equal(opened[NAME], expected)),
    )


def _expected(halves: Halves, groups: Mapping[str, Sequence[Group]], rule: Rule) -> Reals:
    """The sum of the parties' integers, without packing, tags, masks or encryption.

    Rounding is random, so it repeats what each party is about to draw, from a copy of its state.
    """
    total = np.zeros(groups[halves.parties[0]][0].vectors[NAME].size, np.int64)
    for name in halves.parties:
        context, group = halves.sums[name].context, groups[name][0]
        layout = context.transcript.scales.layout(group, rule, context.parties)
        rng = np.random.Generator(np.random.PCG64())
        rng.bit_generator.state = context.transcript.state()["rng"]
        clip = layout.packed[0].clip or 0.0
        total += packing.quantize(layout.codec, group.vectors[NAME], clip, rng)[0]
    return packing.dequantize(layout.codec, total, clip)


def nvflare(context: Any, tensors: int) -> Way:
    """NVFLARE's way, with the update cut into so many tensors."""
    site = nvflare_way.make_site(context)

    @nvflare_way.quiet()
    def way(vectors: Sequence[Vector]) -> Sample:
        server, adding, spent, up = nvflare_way.Server(context), 0.0, [], 0
        for vector in vectors:
            parts = {f"t{k}": part for k, part in enumerate(np.array_split(vector, tensors))}
            seconds, upload = cpu(site.seal, parts)
            spent.append(seconds)
            up = sum(len(data) + len(keys) for data, keys in upload.values())
            adding += cpu(server.add, upload)[0]
        seconds, mean = cpu(server.result)
        opening, opened = cpu(site.open, mean)
        total = np.concatenate(list(opened.values())) * len(vectors)
        down = sum(map(len, mean.values()))
        return Sample(spent, adding + seconds, opening, up, down, total)

    return way
