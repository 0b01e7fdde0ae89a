"""The same run over FLARE and TLS ends with the same bits as in one process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.engines.certificates import make_kits
from secure_fl.engines.flare import FlareHub
from secure_fl.engines.flare_party import FlareParty
from secure_fl.pilot.lead import Lead
from secure_fl.pilot.seat import Seat
from secure_fl.recorder import Recorder
from secure_fl.silo import Silo
from secure_fl.wire import Frame
from tests.engines import free_url
from tests.hospitals import members as hosted_members
from tests.hospitals import silos
from tests.pilot.hospitals import Town, plan_of


def lead_over_flare(town: Town, kits: Path) -> None:
    """Serve the town's seats in threads of their own, over real connections.

    One works at a time: torch has one random state in a process, and hospitals have one each.
    """
    made, url, turn = make_kits(kits, list(town.members)), free_url(), threading.Lock()

    def in_turn(seat: Seat, frame: Frame) -> Frame:
        with turn:
            return seat.step(frame)

    with ExitStack() as stack:
        hub = stack.enter_context(FlareHub(url, made.coordinator, list(town.members)))
        for name, seat in town.seats.items():
            party = stack.enter_context(FlareParty(name, url, made.sites[name]))
            thread = threading.Thread(target=party.serve, args=(partial(in_turn, seat),))
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(party.stop)
        assert not hub.wait_for(list(town.members), 20)
        recorder = Recorder("coordinator", town.events.append)
        Lead(hub, town.coordinator, town.roster, town.plan, recorder).run()
        hub.dismiss()


def members(algorithm: Algorithm) -> list[Silo]:
    return hosted_members(size=12) if algorithm.name == "fedid" else silos(size=12)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(rounds=1),
        FedKD(rounds=1, student_layers=1),
        FedID(rounds=1),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_the_engine_changes_no_bit(tmp_path, algorithm):
    ends = []
    for way in ("here", "flare"):
        silos = {silo.name: silo for silo in members(algorithm)}
        town = Town(tmp_path / way, plan_of(algorithm), silos)
        if way == "here":
            town.lead().run()
        else:
            lead_over_flare(town, tmp_path / "kits")
        assert all(seat.done for seat in town.seats.values()), town.events[-5:]
        ends.append({
            file.relative_to(tmp_path / way): load_file(file)
            for file in sorted((tmp_path / way).rglob("tensors.safetensors"))
        })  # fmt: skip
    here, flare = ends
    assert here.keys() == flare.keys() and here
    for file, tensors in here.items():
        assert tensors.keys() == flare[file].keys()
        assert all(torch.equal(tensor, flare[file][name]) for name, tensor in tensors.items()), file
