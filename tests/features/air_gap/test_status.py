"""`secure-fl status` shows both ends of a courier's folder."""

from __future__ import annotations

import json
from pathlib import Path

from secure_fl.crypto.keys.vault import Cost
from secure_fl.features.air_gap.file_message import Endpoint, message_key
from secure_fl.features.air_gap.folder_end import FolderEnd
from secure_fl.pilot.kits import load_kit
from tests.cli.test_status import status
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import make_pilot_folders


def test_of_a_courier_and_its_trainer(tmp_path: Path) -> None:
    cheap = Cost(log_n=10)
    names = ("east", "north", "west")
    trial = make_pilot_folders(tmp_path / "made", names, plan_of(), port=8443, size=8, cost=cheap)
    north = trial.of("north")
    key = message_key(load_kit(north / "kit").tls)
    end = FolderEnd(north / "letters", Endpoint.COURIER, key, lambda parcel: None)
    try:
        told = status(north, "letters").output
    finally:
        end.close()
    assert "unconnected" in told and "waits for a trainer" in told
    assert "waits for a courier since 2" in status(north, "letters").output
    (courier, trainer) = json.loads(status(north, "letters", "--json").output)
    assert (courier["state"], trainer["state"], trainer["at"]) == ("left", "nobody", None)
    other = status(north, "letters", "--kit", str(trial.of("west") / "kit"))
    assert other.exit_code == 6  # the letters are another site's
