"""Who shows parties different models, rounds or broadcasts reads no single update (P3, P5).

Pasquini, Francati, Ateniese (CCS 2022): a dead model sends nothing, so if all but one are given
one, the next sum is the update of the party that is left. `SeenHistory` then spoils the masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator.run_steps import AgreeStep
from secure_fl.coordinator.sum_steps import Reply, Step
from secure_fl.crypto.keys.identity import keyed_digest
from secure_fl.crypto.sealing import masking, public, secret, tags
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.public import from_parts, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.transcript import SeenHistory
from secure_fl.errors import SecureFLError
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Bulk, Frame, peek
from secure_fl.protocol.messages import Audience, SumInput
from secure_fl.settings import Protection
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from tests.support.attacker import NAMES, Liar

COLLUDER, VICTIM = "east", "west"
SMALL = ("x-one", "x-three", "x-two")  # have smaller models
DECEIVED = tuple(name for name in NAMES if name not in (COLLUDER, VICTIM))
SIZE, BOUND, t = 50, 8.0, COHORT.modulus
X = {n: np.random.default_rng(k).normal(size=SIZE).astype(np.float32) for k, n in enumerate(NAMES)}


def update(party: str, model: Any) -> Any:
    """What a party learns; from a dead model, nothing."""
    return X[party] if model.mean() > -1 else np.zeros(SIZE, np.float32)


def digest(model: Any) -> bytes:
    return hashlib.sha256(np.round(model, 3).astype(np.float32).tobytes()).digest()


def training(name: str, models: dict[str, list[Any]]) -> Program:
    """Everybody sums with everybody, and proves to have the same model."""

    async def run(cohort: Cohort) -> Any:
        models[name] = [np.zeros(SIZE)]
        for _ in range(2):
            mean = (await cohort.sum({"u": update(name, models[name][-1])}, bound=BOUND))["u"] / 4
            models[name].append(models[name][-1] + mean)
            await cohort.agree(digest(models[name][-1]), "model")
        return "nothing to complain about"

    return run


def in_tiers(name: str, models: dict[str, list[Any]]) -> Program:
    """Four have upper layers, which the others lack; of their lower ones all read the sum."""

    async def run(cohort: Cohort) -> Any:
        models[name] = [np.zeros(SIZE)]
        if name in SMALL:
            own = {"bottom": np.ones(SIZE, np.float32)}
            await cohort.sum(own, bound=BOUND, partial=True)
            lower = {"u": np.zeros(SIZE)}
            return await cohort.sum(own, bound=BOUND, partial=True, read=lower)
        upper = {"upper": update(name, models[name][-1])}
        mean = (await cohort.sum(upper, bound=BOUND, partial=True))["upper"] / 4
        models[name].append(models[name][-1] + mean)
        return await cohort.sum({"u": update(name, mean)}, bound=BOUND, partial=True)

    return run


def for_a_host(name: str, models: dict[str, list[Any]]) -> Program:
    """The parties' model is nothing that the host has; what they sum for it next is."""

    async def run(cohort: Cohort) -> Any:
        models[name] = [np.zeros(SIZE)]
        mine = {} if cohort.is_host else {"m": X[name]}
        opened = await cohort.sum(mine, bound=BOUND)
        models[name].append(models[name][-1] + opened.get("m", np.zeros(SIZE)) / 4)
        values = {"u": np.zeros(SIZE) if cohort.is_host else update(name, models[name][-1])}
        return await cohort.sum(values, bound=BOUND, reveal=Audience.HOST)

    return run


def reading(name: str, models: dict[str, list[Any]]) -> Program:
    """Four have small models, and read what the layers above theirs learn."""

    async def run(cohort: Cohort) -> Any:
        models[name] = [np.zeros(SIZE)]
        if name in SMALL:  # here the large ones
            for _ in range(2):
                out = await cohort.sum({"upper": np.ones(SIZE)}, bound=BOUND, partial=True)
            return out
        read = {"upper": np.zeros(SIZE)}
        own = {"u": X[name]}
        opened = await cohort.sum(own, bound=BOUND, partial=True, read=read)
        models[name].append(models[name][-1] + opened["upper"] / 3)
        own = {"u": update(name, models[name][-1])}
        return await cohort.sum(own, bound=BOUND, partial=True, read=read)

    return run


class Deceiver(Liar):
    """Gives two parties a forged sum, and everybody the proofs that he expects to see.

    With one hospital's keys, and with the self masks, which a coordinator is told anyhow.
    """

    def __init__(self, *arguments: Any, models: dict[str, list[Any]]) -> None:
        super().__init__(*arguments, lie=lambda _, message: message)
        self._models, self._sums, self._agreements = models, 0, 0
        self._lonely = False  # whether each is told that nobody else reads what it reads
        self.uploads: dict[str, tuple[Any, Any, bytes]] = {}
        self.host: Any = None

    def _exchange(self, reply: Reply) -> Step:
        kind = next(iter(reply.messages.values()))
        if isinstance(kind, messages.Owners) and kind.readers.get("upper") and not self._sums:
            self._lonely = True
            alone = {n: structs.replace(kind, readers={"upper": (n,)}) for n in NAMES}
            reply = reply._replace(messages=dict(reply.messages) | alone)
        if isinstance(kind, messages.Total):
            self._sums += 1
            if self._sums == 1:
                reply = self._with_a_dead_model(reply)
        if isinstance(kind, messages.Agreed):
            self._agreements += 1
            reply = reply._replace(messages={name: self._proofs(name) for name in NAMES})
        step = super()._exchange(reply)
        if isinstance(step, AgreeStep):
            step.fingerprints = {b"": list(NAMES)}
        return step

    def _with_a_dead_model(self, reply: Reply) -> Reply:
        """Forge what the deceived open, and where none would open, what all do."""
        messages, bulks = dict(reply.messages), dict(reply.bulks)
        for name in messages if self._lonely else DECEIVED:
            parts = [self._forged(name, sent) for sent in self._sums_of(name).last._sent]
            messages[name] = structs.replace(messages[name], sizes=tuple(map(len, parts)))
            bulks[name] = Bulk.of(b"".join(parts))
        return reply._replace(messages=messages, bulks=bulks)

    def _forged(self, name: str, sent: Any) -> bytes:
        """With the colluder's keys: where masks and tags are drawn follows from what it is told."""
        keys, owners = self._colluder.context.keys, sent.group.owners
        (vector,) = sent.group.vectors
        dead = name in DECEIVED and (vector == "upper" or not self._lonely)
        values = np.full(SIZE, -BOUND if dead else 0.0, np.float32)
        low, _ = sent.layout.encode({vector: values}, self._colluder.context.transcript.rng, None)
        slots = low * np.uint64(len(owners)) % np.uint64(t)
        zeros, members = (
            np.zeros_like(slots),
            [self._colluder.context.numbers[one] for one in owners],
        )
        tag = tags.make(keys.tag_key, zeros, members, t, sent.stream)
        tag += tags.dot(slots, _weights(keys.tag_key, slots, sent.stream), t)
        total = public.Sum(public.load(keys.cohort.public()), slots.size + 1)
        total.add(secret.seal(keys.cohort, np.append(slots, np.uint64(tag % t))))
        return from_parts(total.result())

    def _proofs(self, to: str) -> messages.Agreed:
        """That all have the model that this party has; the colluder could compute them all."""
        state, number = digest(self._models[to][-1]), self._agreements
        context = (f"{number} model {name}".encode() for name in NAMES)
        proofs = (keyed_digest(self._colluder.context.digest_key, state, one) for one in context)
        return messages.Agreed(dict(zip(NAMES, proofs, strict=True)))

    def _add(self, step: Any, party: str, message: Any, frame: Any, answers: Any) -> Any:
        if isinstance(message, SumInput):
            last = self._sums_of(party).last
            if party in NAMES:
                self.uploads[party] = last._keys, last._sent[0], frame.bulk
            elif party == "hub":
                self.host = last._keys
            if self._sums or self._lonely:  # whatever segments are bound to, they are one
                alike = (structs.replace(s, key=_key(s)) for s in message.segments)
                message = structs.replace(message, segments=tuple(alike))
        return super()._add(step, party, message, frame, answers)

    def read(self) -> Any:
        """What the masks in the sum of all uploads of the second round do not hide."""
        total = np.zeros(0, np.uint64)
        for party, (keys, sent, bulk) in self.uploads.items():
            count = sent.layout.slots + 1
            if self.host is None:
                cohort = self._colluder.context.keys.cohort
                slots = secret.open(cohort, to_parts(bulk, count), count)
            else:  # which conspires
                slots = to_slots(bulk, count) + np.uint64(t)
                slots -= self.host.host_masks([party], sent.stream, count, t)
            own = masking.uniform(
                masking.stream_key(keys._self_seed, sent.stream, "self"), count, t
            )
            slots = (slots + np.uint64(t) - own) % np.uint64(t)
            total = (total + slots) % np.uint64(t) if total.size else slots
        values, _ = sent.layout.decode(total[:-1], len(NAMES), None)
        return values["u"] - update(COLLUDER, self._models[COLLUDER][1])

    def _sums_of(self, party: str) -> Any:
        return self._engine.sessions[party]._sums  # type: ignore[attr-defined]

    @property
    def _colluder(self) -> Any:
        return self._sums_of(COLLUDER)


def _key(segment: messages.Segment) -> bytes:
    return hashlib.sha256(" ".join(segment.owners).encode()).digest()


def _weights(key: bytes, slots: Any, stream: Any) -> Any:
    return masking.uniform(masking.stream_key(key, stream, "tag"), slots.size, t)


def watching(sessions: Mapping[str, Any]) -> LossyEngine:
    """The engine of parties whose sum under way can be looked at from outside."""
    for session in sessions.values():
        sums, begin = session._sums, session._sums.begin

        def remember(*given: Any, sums: Any = sums, begin: Any = begin) -> Any:
            sums.last = begin(*given)
            return sums.last

        sums.begin = remember
    return LossyEngine(sessions)


Training = Callable[[str, dict[str, list[Any]]], Program]


def deceive(program: Training, others: tuple[str, ...] = ()) -> tuple[Federated, Any]:
    models: dict[str, list[Any]] = {}
    leads: list[Deceiver] = []

    def lead(*arguments: Any) -> Deceiver:
        leads.append(Deceiver(*arguments, models=models))
        return leads[-1]

    out = federate(
        {name: program(name, models) for name in (*NAMES, *others)},
        mode="he+secagg",
        bits=24,
        min_cohort=3,
        host="hub" if "hub" in others else None,
        engine=watching,
        lead=lead,
        catch=True,
    )
    assert all(models[name][1].mean() < -1 for name in DECEIVED)  # the lie is told either way
    return out, leads[-1].read()


ATTACKS: dict[str, tuple[Training, tuple[str, ...]]] = {
    "all": (training, ()),
    "tiers": (in_tiers, SMALL),
    "host": (for_a_host, ("hub",)),
    "readers": (reading, SMALL),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_update_is_read_off_by_dead_models_where_masks_are_not_bound(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if attack == "all":
        monkeypatch.setattr(SeenHistory, "by", lambda self, readers, *, host: b"")
    if attack == "readers":
        monkeypatch.setattr(messages.Owners, "plain", lambda self: b"")
    else:
        monkeypatch.setattr(SeenHistory, "beyond", lambda self, me, peers, readers, *, host: {})
    _, found = deceive(*ATTACKS[attack])
    np.testing.assert_allclose(found, X[VICTIM], atol=1e-4)


@pytest.mark.parametrize("attack", ATTACKS)
def test_masks_of_who_saw_other_sums_do_not_cancel(attack: str) -> None:
    out, found = deceive(*ATTACKS[attack])
    assert isinstance(out.error, SecureFLError) and not any(out.results.values())
    # As noise: the best of so many deviations, of correlations with 50 values.
    assert abs(np.corrcoef(found, X[VICTIM])[0, 1]) < 6 / SIZE**0.5
    assert np.abs(found - X[VICTIM]).max() > 1.0


class Losing(LossyEngine):
    """Loses the victim with its second contribution."""

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for party, frame in super().exchange(frames, deadline):
            message = peek(frame.head).message
            if party == VICTIM and isinstance(message, SumInput):
                self.given = getattr(self, "given", 0) + 1
                if self.given == 2:
                    self.lose = {VICTIM: self.exchanges}
                    continue
            yield party, frame


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
@pytest.mark.parametrize("attack", ["tiers", "host"])
def test_masks_with_who_is_lost_are_removed_whatever_they_were_bound_to(
    attack: str, mode: Protection
) -> None:
    program, others = ATTACKS[attack]
    out = federate(
        {name: program(name, {}) for name in (*NAMES, *others)},
        mode=mode,
        bits=24,
        min_cohort=3,
        host="hub" if "hub" in others else None,
        engine=Losing,
    )
    assert VICTIM not in out.results
    for name in others:  # the host, or who reads only
        found = out.results[name]["u"]
        np.testing.assert_allclose(found, sum(X[n] for n in NAMES if n != VICTIM), atol=1e-4)
