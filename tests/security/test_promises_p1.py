"""P1: the coordinator learns nothing about any value. P2: a party learns the sum only. P4: hosts.

Each test reads the wire in a weaker mode first, and succeeds there.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from secure_fl.crypto.sealing import masking, public, secret
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import to_slots
from secure_fl.crypto.sealing.public import to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, SecureFLError
from secure_fl.federation.assembly import make_keys
from secure_fl.protocol import frames, messages
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import OfferedKeys
from secure_fl.settings import Protection
from secure_fl.testing.harness import federate
from tests.support.attacker import NAMES, Wiretap, looks_uniform, marked, summing
from tests.support.unmasked import without_masks

BLIND = (
    "import sys, secure_fl.coordinator.machine, secure_fl.crypto.sealing.blind_sum;"
    "import secure_fl.crypto.sealing.blind_sum, secure_fl.crypto.sealing.public;"
    "print(sorted({'torch', 'transformers', 'opacus', 'secure_fl.crypto.sealing.secret', "
    "'secure_fl.crypto.keys.keyring', 'secure_fl.crypto.sealing.secure_sum', "
    "'secure_fl.federation.assembly', "
    "'secure_fl.algorithms', 'secure_fl.learning.models'} & set(sys.modules)))"
)


def test_a_coordinators_process_never_loads_what_could_open() -> None:
    done = subprocess.run([sys.executable, "-c", BLIND], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    party = BLIND.replace("import sys,", "import sys, secure_fl.federation.assembly,")
    done = subprocess.run([sys.executable, "-c", party], capture_output=True, text=True, check=True)
    assert "secure_fl.crypto.sealing.secret" in done.stdout  # the check can fail


def test_a_coordinator_offered_a_secret_key_refuses_to_start() -> None:
    key: Any = secret.generate()
    with pytest.raises(CryptoError, match="secret key was offered"):
        public.load(key.to_bytes())
    for offered in (key, key.to_bytes()):
        with pytest.raises(CryptoError, match="not a public context"):
            ProtectedTotal(
                COHORT.modulus,
                offered,
                offered=OfferedKeys(),
                numbers={},
                host=None,
                threshold=1,
                run=b"",
            )


def listen(mode: Protection, **options: Any) -> tuple[Wiretap, Any]:
    tap, keys = Wiretap(), make_keys(mode, NAMES, None)
    federate(marked(**options), mode=mode, engine=tap, keys=keys)
    return tap, keys["north"]


def upload(tap: Wiretap, party: str) -> tuple[bytes, int]:
    heard = next(h for h in tap.of(messages.SumInput, party))
    return heard.bulk, heard.message.segments[0].slots


def packed(slots: Slots) -> bool:
    """A constant vector in fixed point: nearly all slots look alike."""
    return len(np.unique(slots >> np.uint64(24))) < 8


def test_without_protection_the_coordinator_reads_every_update() -> None:
    tap, _ = listen("none")
    for value, name in enumerate(NAMES, 1):
        data, _count = upload(tap, name)
        np.testing.assert_array_equal(np.frombuffer(data, "<f4"), np.full(4000, value))


def test_with_masks_and_a_pad_the_coordinator_reads_neither_update_nor_sum() -> None:
    tap, party = listen("secagg")
    heard = tap.of(messages.Total, "east")[0]
    _data, count = upload(tap, "east")
    for sent in (heard.bulk, *(upload(tap, name)[0] for name in NAMES)):
        assert looks_uniform(to_slots(sent, count), COHORT.modulus)
    segment = tap.of(messages.SumInput, "east")[0].message.segments[0]
    run = frames.peek(heard.head).run.hex()
    pad = masking.stream_key(party.pad_key, StreamId(run, segment.key.hex(), 1), "pad")
    slots = to_slots(heard.bulk, count)[:-1]
    masking.subtract(slots, pad, len(NAMES), COHORT.modulus)
    assert packed(slots)  # the sum is there to be read, for holders of the cohort's keys


def test_with_both_the_coordinator_reads_neither() -> None:
    tap, _ = listen("he+secagg")
    total = tap.of(messages.Total, "east")[0].bulk
    data, count = upload(tap, "east")
    for sealed in (total, data):
        low = b"".join(p[1 : 1 + 4 * count] for p in to_parts(sealed, count))
        bytes_seen = np.frombuffer(low, np.uint8)
        assert looks_uniform(bytes_seen.astype(np.uint64), 256)


def opened_by_another() -> Slots:
    tap, curious = listen("he+secagg")
    data, count = upload(tap, "east")
    assert curious.cohort is not None
    return secret.open(curious.cohort, to_parts(data, count), count)[:-1]


def test_a_party_that_gets_anothers_upload_opens_it_to_noise() -> None:
    with without_masks():
        bare = opened_by_another()
    assert packed(bare) and not looks_uniform(bare, COHORT.modulus)
    masked = opened_by_another()
    assert not packed(masked) and looks_uniform(masked, COHORT.modulus)


def test_under_masks_uploads_do_not_depend_on_inputs() -> None:
    """Opened with the key, the difference of two parties' uploads is as uniform as each."""
    tap, curious = listen("he+secagg")
    assert curious.cohort is not None
    slots = []
    for name in NAMES[:2]:
        data, count = upload(tap, name)
        slots.append(secret.open(curious.cohort, to_parts(data, count), count))
    difference = (slots[0] + (np.uint64(COHORT.modulus) - slots[1])) % np.uint64(COHORT.modulus)
    assert looks_uniform(difference, COHORT.modulus)


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_two_runs_with_other_inputs_look_alike(mode: Protection) -> None:
    def shape(values: dict[str, Any]) -> list[tuple[Any, ...]]:
        tap = Wiretap()
        federate({n: summing(values, 2, carry=True) for n in NAMES}, mode=mode, engine=tap)
        return [(h.party, h.direction, type(h.message), h.size) for h in tap.heard]

    rng = np.random.default_rng(5)
    dull = {"w": np.zeros(5000, np.float32), "loss": 0.0}
    vivid = {"w": 1e3 * rng.normal(size=5000).astype(np.float32), "loss": 1e9}
    assert shape(dull) == shape(vivid)


def host_run(mode: Protection) -> tuple[Wiretap, Any]:
    tap = Wiretap()
    parties = marked(reveal=Audience.HOST)
    hub = summing({"x": np.zeros(4000, np.float32)}, reveal=Audience.HOST, bound=8.0)
    keys = make_keys(mode, (*NAMES, "hub"), "hub")
    out = federate(parties | {"hub": hub}, host="hub", mode=mode, engine=tap, keys=keys)
    np.testing.assert_allclose(out.results["hub"][0]["x"], np.full(4000, 10.0), atol=1e-2)
    return tap, keys


def test_without_protection_a_host_sum_is_read_on_its_way() -> None:
    tap, _ = host_run("none")
    total = np.frombuffer(tap.of(messages.Total, "hub")[0].bulk, "<f4")
    np.testing.assert_array_equal(total, np.full(4000, 10.0))


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_a_host_sum_is_noise_to_the_coordinator_and_to_the_other_parties(mode: Protection) -> None:
    tap, keys = host_run(mode)
    assert all(h.bulk == b"" for n in NAMES for h in tap.of(messages.Total, n))
    data, count = tap.of(messages.Total, "hub")[0].bulk, tap.of(messages.SumInput, "hub")[0].message
    slots = to_slots(data, count.segments[0].slots)
    assert looks_uniform(slots, COHORT.modulus)
    if mode == "he+secagg":  # a party's own key does not help
        with pytest.raises(SecureFLError):
            secret.open(keys["north"].cohort, to_parts(data, slots.size), slots.size)
