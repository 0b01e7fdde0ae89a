"""Curves of a run: bytes and budget over rounds, and how the update's energy is spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from secure_fl.audits.document import SeriesPart
from secure_fl.audits.roles import Shapes
from secure_fl.capture import readings
from secure_fl.capture.opening import RecordedRun
from secure_fl.crypto.privacy.accounting import decode_event, epsilon
from secure_fl.crypto.privacy.ledger import load_chain

MATRICES = 4  # spectra that are shown


def traffic(run: RecordedRun, last: int) -> tuple[SeriesPart, ...]:
    """Bytes that the coordinator received and sent in each round to the last, over all members."""
    curves = []
    for label, sent in (("from the hospitals", False), ("to the hospitals", True)):
        bytes_of: dict[int, int] = {}
        for frame in run.frames:
            if frame.sent is sent:
                at = min(max(1, frame.envelope.round), last)  # goodbyes belong to the last round
                bytes_of[at] = bytes_of.get(at, 0) + frame.size
        rounds = sorted(bytes_of)
        curves.append(_series(label, rounds, [bytes_of[at] for at in rounds]))
    return tuple(curves)


def spectra(run: RecordedRun, shapes: Shapes) -> tuple[SeriesPart, ...]:
    """Cumulative energy of the first aggregate's singular values, for some of its matrices."""
    reads = readings.of_all(run, shapes, run.first_round)
    found = {} if not reads else {n: v for n, v in reads[0].values.items() if np.ndim(v) == 2}
    names = sorted(found, key=lambda name: (-found[name].size, name))[:MATRICES]
    curves = []
    for name in names:
        energy = np.linalg.svd(found[name], compute_uv=False) ** 2
        share = np.cumsum(energy) / max(energy.sum(), 1e-300)
        ranks = np.arange(1, len(share) + 1) / len(share)
        curves.append(_series(name, ranks.tolist(), share.round(6).tolist()))
    return tuple(curves)


def budget(folder: Path) -> tuple[SeriesPart, ...]:
    """ε over rounds, recomposed from each party's ledger in the run's folder."""
    curves = []
    for file in sorted(folder.glob("parties/*/ledger.sqlite")):
        entries = [e for e in load_chain(file).entries if e.state == "reserved"]
        rounds, spent = [], []
        for entry in entries:
            before = [decode_event(e.event) for e in entries if e.sequence <= entry.sequence]
            if entry.round is not None and entry.delta is not None:
                rounds.append(float(entry.round))
                spent.append(round(epsilon(before, entry.delta), 6))
        if rounds:
            curves.append(_series(file.parent.name, rounds, spent))
    return tuple(curves)


def _series(label: str, x: list[int] | list[float], y: list[int] | list[float]) -> SeriesPart:
    return SeriesPart(label=label, x=tuple(map(float, x)), y=tuple(map(float, y)))
