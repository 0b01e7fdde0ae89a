"""Our command with the lies that the other systems are tested with, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from torch import Tensor, full_like

from benchmarks.peers.inside.job import FIRST_BAD, TAPPED, Job, save
from benchmarks.peers.ways import SITE, UNMASKED
from secure_fl.algorithms import fedavg, updates
from secure_fl.coordinator.sum_steps import Reply, SumStep
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.public import to_parts
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.learning.anatomy import trainable
from secure_fl.protocol.frames import Bulk, Frame, Link, cut
from secure_fl.protocol.messages import SumInput, Unmask
from tests.support.unmasked import remove_masks

UPLOADS = "uploads"  # saved by the hub, for a site that cooperates
SMALL = 10_000  # slots: sums of counts and scores are skipped

Update = dict[str, Tensor]


def spoil(how: Callable[[Update], Update]) -> None:
    """Spoil this site's updates from some round on."""
    train = updates.local_update

    def spoilt(*args: Any, **rest: Any) -> Update:
        Δ = train(*args, **rest)
        return how(Δ) if args[3].number >= FIRST_BAD else Δ

    fedavg.local_update = spoilt  # type: ignore[attr-defined]


def send_again() -> None:
    """Send the sealed bytes of an earlier round once more."""
    pack, kept = Link.pack, list[Frame]()

    def packing(self: Link, message: Any, bulk: Bulk | None = None) -> Frame:
        frame = pack(self, message, bulk)
        if isinstance(message, SumInput) and max(s.slots for s in message.segments) > SMALL:
            if self.round >= FIRST_BAD and kept:
                return kept[0]
            kept.append(frame)
        return frame

    Link.pack = packing  # type: ignore[method-assign]


def note() -> None:
    """Save this site's weights before and after training, to measure others' knowledge."""
    job, train = Job(), updates.local_update

    def noting(*args: Any, **rest: Any) -> Update:
        Δ = train(*args, **rest)
        site, round, weights = os.environ[SITE], args[3].number, trainable(args[1])
        got = {name: weights[name].detach().numpy() for name in Δ}
        job.keep("got", site, round, got)
        job.keep("sent", site, round, {name: got[name] + Δ[name].numpy() for name in Δ})
        return Δ

    fedavg.local_update = noting  # type: ignore[attr-defined]


def listen() -> None:
    """Save every upload at the hub."""
    job, take = Job(), SumStep.receive
    (job.out / UPLOADS).mkdir(exist_ok=True)

    def taking(self: SumStep, party: str, message: Any, bulk: bytes) -> None:
        if max(segment.slots for segment in message.segments) > SMALL:
            number = len(list((job.out / UPLOADS).iterdir()))
            round = self.context.offered.number
            job.tap(round, number, {"bytes": np.frombuffer(bulk, np.uint8)})
            sizes = [segment.size for segment in message.segments]
            upload = max(cut(bulk, sizes), key=len)
            (job.out / UPLOADS / f"{number}-{party}").write_bytes(upload)
        take(self, party, message, bulk)

    SumStep.receive = taking  # type: ignore[method-assign]


def open_alone() -> None:
    """Open the uploads of single sites with this site's key."""
    job, real, seen = Job(), SecureSumInProgress.open, set[Path]()

    def opening(self: SecureSumInProgress, *args: Any, **rest: Any) -> Mapping[str, Any]:
        (segment,) = self._sent[:1]
        key = self._context.keys.cohort
        if segment.layout.values > SMALL and key is not None:
            for file in sorted(set((job.out / UPLOADS).iterdir()) - seen):
                seen.add(file)
                count = segment.layout.slots + 1
                slots = secret.open(key, to_parts(file.read_bytes(), count), count, 1)[:-1]
                values, _ = segment.layout.decode(slots, 1)
                values.pop("records", None)
                folder = job.out / f"{TAPPED}-with-a-site"
                folder.mkdir(exist_ok=True)
                save(folder / f"{file.name}.npz", values)
        return real(self, *args, **rest)

    SecureSumInProgress.open = opening  # type: ignore[method-assign, assignment]


def add_one() -> None:
    """Tell all sites that only the first one is left."""
    reply, take = SumStep.reply, SumStep.receive
    large = set[int]()

    def taking(self: SumStep, party: str, message: Any, bulk: bytes) -> None:
        if max(segment.slots for segment in message.segments) > SMALL:
            large.add(id(self))
        take(self, party, message, bulk)

    def replying(self: SumStep, members: tuple[str, ...]) -> Reply:
        said = reply(self, members)
        if id(self) not in large:
            return said
        alone, rest = members[:1], members[1:]
        self.survivors = alone
        messages = {
            to: structs.replace(message, survivors=alone, dropped=rest)
            if isinstance(message, Unmask)
            else message
            for to, message in said.messages.items()
        }
        return said._replace(messages=messages)

    SumStep.receive = taking  # type: ignore[method-assign]
    SumStep.reply = replying  # type: ignore[method-assign]


def nan(Δ: Update) -> Update:
    """Replace an update by NaN."""
    return {name: full_like(change, float("nan")) for name, change in Δ.items()}


def wider(Δ: Update) -> Update:
    """Widen an update by a column, as of another model."""
    from torch import cat

    return {name: cat([change, change[..., -1:]], dim=-1) for name, change in Δ.items()}


SITES: Mapping[str, Callable[[], None]] = {
    "nan": partial(spoil, nan),
    "model": partial(spoil, wider),
    "again": send_again,
}


def lie(wrong: str, site: str, where: str) -> None:
    """Patch this process for its role in the mishap."""
    if os.environ.get(UNMASKED):
        remove_masks()
    if site == "hub":
        hub = {"tap": [listen], "alone": [listen, add_one]}
        for change in hub.get(wrong, []):
            change()
        return
    if wrong in {"tap", "alone"}:
        note()
        if site == where:
            open_alone()
    elif site == where and wrong in SITES:
        SITES[wrong]()


if __name__ == "__main__":
    job = Job()
    lie(job.wrong, os.environ[SITE], job.where)
    from secure_fl.cli.main import main

    main()
