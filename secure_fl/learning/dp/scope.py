"""The runs that DP can protect, its units, and the ledgers of its accounts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from secure_fl.crypto.keys.files import write_atomic
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.vault import check_private
from secure_fl.crypto.privacy.ledger import Ledger
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.privacy.training_account import DpAccount, Units
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError, KeyringError, SettingsError
from secure_fl.files import RUN_MARK, write_whole
from secure_fl.settings import DPSettings, NoiseSettings, TrainingSettings
from secure_fl.thresholds import collusion_bound

LEDGER, KEY = "ledger.sqlite", "ledger.key"


def sampling_units(examples: Sequence[Example], settings: DPSettings, party: str) -> Units:
    """Rows of each unit: every record by itself, or all records of a patient together.

    The ids of a patient's records start with the patient and "/".
    """
    if settings.unit == "record":
        return [(row,) for row in range(len(examples))]
    rows: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        patient, slash, _ = example.id.partition("/")
        if not (patient and slash):
            raise DataError(
                "the record names no patient, so patients cannot be protected",
                fix="give ids as PATIENT/NOTE (built-in records: data.patients = true), or set "
                'training.dp.unit = "record": then k records of one patient are protected with '
                "about k·ε only",
                party=party,
                record=row + 1,
                field="id",
            )
        rows.setdefault(patient, []).append(row)
    return list(rows.values())


def require_private(kind: str, algorithm: str, *, through_fit: bool, why: str = "") -> None:
    """Refuse tasks and algorithms that DP-SGD cannot protect, before anything is computed.

    `why`: the reason of the algorithm, if it is not that it uses records elsewhere.
    """
    if kind == "ranking":
        raise SettingsError(
            "DP-SGD needs a gradient per reader, and rows of a ranking batch are titles",
            fix="remove training.dp, or choose another task",
            field="training.dp",
        )
    if why:
        raise SettingsError(
            f"{algorithm} does not run under DP-SGD: {why}",
            fix="remove training.dp, or use fedavg, fedprox, fedadam, fedyogi or fedavgm",
            field="training.dp",
        )
    if not through_fit:
        raise SettingsError(
            f"{algorithm} uses records outside local training, where DP-SGD does not protect them",
            fix="remove training.dp, or use an algorithm that trains through Site.fit only",
            field="training.dp",
        )


def privacy_of(
    silo: Silo,
    training: TrainingSettings,
    passes: int,
    folder: Path | None,
    identity: Identity | None = None,
    *,
    step_rate: float | None = None,
    own_epsilon: float | None = None,
) -> DpAccount | None:
    """Open the party's account, on the ledger of the settings or of the run's folder."""
    dp = training.dp
    if dp is None:
        return None
    units = sampling_units(silo.train, dp, silo.name)
    ledger = _ledger_of(silo.name, dp.ledger, folder, identity)
    account = DpAccount(
        silo.name,
        dp,
        units,
        training.batch_size,
        passes=passes,
        sample_rate=step_rate,
        own_epsilon=own_epsilon,
        ledger=ledger,
        run=_run_name(folder, ledger, identity),
    )
    account.require_left()
    return account


def require_shared(algorithm: str, mode: str, *, steps: bool) -> None:
    """Refuse shared noise where an update could be seen without the noise of the others."""
    if not steps:
        raise SettingsError(
            f"{algorithm} trains at each hospital before it sums, so its updates would have a "
            "share of the noise only",
            fix='set training.dp.noise = "local". Or set algorithm.name = "probe" or "fedsgd": '
            "they sum in each step, and with algorithm.student_layers they also teach a small "
            "model on public texts",
            field="training.dp.noise",
        )
    if mode not in ("secagg", "he+secagg"):
        raise SettingsError(
            f"in mode {mode} an update can be read alone, and it would have a share of the noise "
            "only",
            fix='set protection.mode = "he+secagg", or training.dp.noise = "local"',
            field="protection.mode",
        )


def require_noise_sources(
    dp: DPSettings, parties: int, threshold: int, *, resumed: bool = False
) -> None:
    """Refuse dropouts and colluders that leave no noise, and colluders that masks do not withstand.

    If only one hospital is sure to add noise, each adds all of it, and needs no masks. In a
    `resumed` run, some of the planned dropouts may have happened.
    """
    dropouts = dropouts_of(dp, parties, threshold)
    if dp.dropouts is not None and not resumed:
        dropouts = dp.dropouts
    honest = parties - dropouts - dp.colluders
    most = max(0, collusion_bound(parties, threshold).lying)
    if honest > 1 and dp.colluders > most:
        raise SettingsError(
            f"with a threshold of {threshold}, {dp.colluders} colluders and a lying coordinator "
            f"could open the values of single hospitals of {parties}, which have a share of the "
            "noise only",
            fix=f"set training.dp.colluders to {most} at most, or raise protection.threshold",
            field="training.dp.colluders",
        )
    if honest < 1:
        raise SettingsError(
            f"with colluders = {dp.colluders} and dropouts = {dropouts}, none of the {parties} "
            "hospitals is left to add noise",
            fix="set training.dp.dropouts or training.dp.colluders lower, or add hospitals",
            field="training.dp.colluders",
        )
    if dropouts > (possible := max(0, parties - threshold)):
        raise SettingsError(
            f"found {dropouts} with a threshold of {threshold}: a sum over {parties} hospitals "
            f"opens if no more than {possible} drop out",
            fix=f"set training.dp.dropouts = {possible}, which costs less accuracy",
            field="training.dp.dropouts",
        )


def dropouts_of(dp: DPSettings, parties: int, threshold: int) -> int:
    """Return how many hospitals may drop out of a step with shared noise, or still may."""
    possible = max(0, parties - threshold)
    return possible if dp.dropouts is None else min(dp.dropouts, possible)


def require_predictions(algorithm: str, *, noised: bool) -> None:
    """Refuse noise on predictions where a host also opens other values."""
    if not noised:
        raise SettingsError(
            f"{algorithm} opens more than predictions, so noise on predictions protects nobody",
            fix="remove protection.noise; [training.dp] protects records in any algorithm that "
            "trains through Site.fit",
            field="protection.noise",
        )


def noise_of(
    silo: Silo,
    noise: NoiseSettings | None,
    threshold: int,
    folder: Path | None,
    identity: Identity | None = None,
) -> NoiseLedger | None:
    """Open the party's ledger of noised sums; the host releases nothing and has none."""
    if noise is None:
        return None
    host = silo.role == "host"
    ledger = None if host else _ledger_of(silo.name, noise.ledger, folder, identity)
    run = _run_name(folder, ledger, identity)
    return NoiseLedger(silo.name, noise, threshold, ledger=ledger, run=run)


def _ledger_of(
    party: str, chosen: str | None, folder: Path | None, identity: Identity | None
) -> Ledger | None:
    place = Path(chosen) if chosen else folder and folder / "parties"
    return open_ledger(place / party, party, identity) if place else None


def _run_name(folder: Path | None, ledger: Ledger | None, identity: Identity | None) -> str:
    """Return the name of a run in ledgers: equal after a resume, another after `site erase`.

    In a simulation, a new run in the folder of a removed one is another run. A hospital's run
    keeps its name if the folder is lost, so that its limits apply to all that the run has spent.
    """
    if folder is None:
        return sha256(os.urandom(8)).hexdigest()[:16]
    run = f"{folder.resolve()}"
    if identity is None:
        run += f", {_mark(folder / RUN_MARK)}"
    elif ledger is not None and (erased := ledger.noted("erased", run=folder.name)):
        run += f", erased {erased} times"
    return sha256(run.encode()).hexdigest()[:16]


def _mark(file: Path) -> str:
    """Return the random name of a simulated run; make it if the run is new."""
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, os.urandom(8).hex())
    return file.read_text()


def open_ledger(folder: Path, party: str, identity: Identity | None = None) -> Ledger:
    """Open (or create) the ledger of a party. A hospital signs it by its own identity.

    A party that is simulated on this machine has no lasting identity. Its signing key is in the
    ledger's folder: that detects damage, but not changes by a user who may write there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if identity is not None:
        return Ledger(folder / LEDGER, identity)
    key = folder / KEY
    if not key.exists():
        if (folder / LEDGER).exists():
            raise KeyringError(
                "the key of this ledger is missing, so nothing can be added to it",
                fix="restore the key; without it, this budget is closed",
                party=party,
                file=key,
                reason="missing",
            )
        write_atomic(key, Identity.generate(party).to_private_bytes(), mode=0o600)
    check_private(key, 0o600)
    return Ledger(folder / LEDGER, Identity.from_private_bytes(key.read_bytes()))
