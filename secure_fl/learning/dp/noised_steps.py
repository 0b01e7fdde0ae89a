"""Steps whose gradients are summed over the hospitals with noise: DP-FedSGD.

A step takes the gradients of a Poisson sample of the records of all hospitals, or of all records.
Each is clipped and written in integers. A hospital adds them, adds its noise, and sends the result.
With `noise = "local"`, its noise alone protects its records. With `noise = "shared"`, it adds a
share, and only the sum over the hospitals is opened (`crypto.privacy.shared_noise` has the proof).

A repeated step sends the same integers: they are on disk before they leave, as are the results of
`dp_sgd`. The checkpoints' rule about repeated sums decides over which parties the sum is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.crypto.privacy.shared_noise import SharedNoise, on_grid
from secure_fl.errors import CryptoError
from secure_fl.events import UpdateResent
from secure_fl.learning.dp.dp_sgd import (
    account_of,
    announce,
    checked_clipping,
    checked_records,
    warn_of_lost,
)
from secure_fl.learning.dp.private_model import Bounds, Clipping, privately, trained
from secure_fl.learning.dp.scope import dropouts_of
from secure_fl.learning.dp.secret_randomness import Coins, PoissonBatches, secret_dropout
from secure_fl.learning.local_training import task_loss
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort

if TYPE_CHECKING:
    from secure_fl.crypto.privacy.training_account import DpAccount


Gradients = Callable[[Sequence[int], Coins], Iterable[Tensor]]  # of units, some rows at a time

UNSIZED = 1.0  # σ of local noise in keys: after a crash an account may calibrate another


@dataclass(slots=True)
class NoisedSteps:
    """The noised steps of one run at one site."""

    cohort: Cohort
    site: Site
    expected: float  # units of all hospitals together in a step, which is public
    bound: float  # C
    most: int  # bounds that the gradients of one hospital add up to in one value; more are cut
    coins: Coins = field(default_factory=Coins.secret)

    async def mean(self, state: bytes, dimension: int, gradients: Gradients) -> NDArray[np.float64]:
        """Return the noised mean gradient, equal at all parties.

        `state`: everything that the step starts from, equal at all parties. `gradients`: yields
        rows with the gradients of the sampled units of this site.
        """
        account, noise = self._account, self._noise(dimension, UNSIZED)
        account.bound = self.bound
        integers = self._integers(state, noise, gradients)
        unit = self.bound / noise.grid / self.expected
        if account.settings.noise == "shared":
            sums = await self.cohort.sum({"gradient": integers}, bound=noise.reach, noise=noise)
        else:
            sums = await self.cohort.sum({"gradient": integers * unit}, carry=True)
            unit = 1.0
        return sums["gradient"] * unit

    def signal_to_noise(self, rounds: int) -> float:
        """Return one unit's bound over the noise that all steps of the run add up to.

        It follows from the plan, so it is equal at hospitals whose own noise differs.
        """
        noise = self._noise(1, self._account.planned_multiplier())
        return math.sqrt(rounds * self._account.sample_rate) / noise.present

    @property
    def _account(self) -> DpAccount:
        return account_of(self.site)

    def _noise(self, dimension: int, local: float | None = None) -> SharedNoise:
        """The noise of a step; a hospital's own noise is one that no other hospital shares.

        `local`: σ of local noise instead of the account's.
        """
        account = self._account
        if account.settings.noise == "local":
            return SharedNoise(local or account.noise_multiplier, dimension, self.most, 1, 0, 0)
        noise = noise_of_plan(account, self.cohort, dimension, self.most)
        account.share(noise)
        return noise

    def _integers(
        self, state: bytes, noise: SharedNoise, gradients: Gradients
    ) -> NDArray[np.int64]:
        """Return the site's noised sum: the stored one if this step was computed before."""
        account, site = self._account, self.site
        number = site.recorder.round
        key = sha256(f"{account.trained_in(number)} {noise}\n".encode() + state).hexdigest()[:32]
        saved = None if account.trainings is None else account.trainings.find(number, key)
        if saved is not None:
            account.spent_before(saved["account"], 1)
            site.recorder.event(UpdateResent(round=number))
            stored: NDArray[np.int64] = saved["integers"].numpy()
            return stored
        if account.settings.noise == "local":
            noise = replace(noise, multiplier=account.noise_multiplier)
        account.require_own(noise)  # may refuse, before anything is spent
        self._spend(number)
        with site.recorder.phase("train"):
            sample = self.coins.sample(len(account.units), account.sample_rate)
            total, units, lost = np.zeros(noise.dimension, np.int64), 0, 0
            for rows in gradients(sample, self.coins):
                units += len(rows)
                if rows.shape[1:] != total.shape or units > len(sample):
                    raise CryptoError(
                        f"gradients of {tuple(rows.shape)}, after {units - len(rows)} rows: a step "
                        f"has one row of {len(total)} values for each of {len(sample)} units",
                        fix="report this as a bug of the algorithm; the step is spent",
                    )
                lost += int((~torch.isfinite(rows).all(1)).sum())
                total += on_grid(rows.double().numpy(), self.bound, noise.grid).sum(axis=0)
            integers = noise.noised(total, account.noise_multiplier)
        warn_of_lost(site, lost)
        account.finish_step()
        if account.trainings is not None:
            kept = {"integers": torch.from_numpy(integers), "account": account.state_dict()}
            account.trainings.keep(number, key, kept)
        return integers

    def _spend(self, round: int) -> None:
        """Spend a step in the ledger, and log it where a block of steps begins."""
        spending = self._account.next_step(round)
        if spending is not None:
            announce(self.site, spending, self._account.settings.delta)


def noise_of_plan(account: DpAccount, cohort: Cohort, dimension: int, units: int) -> SharedNoise:
    """Size the shared noise by the plan and its members, equal at all of them."""
    dp, parties = account.settings, sum(member != cohort.host for member in cohort.roster)
    dropouts = dropouts_of(dp, parties, cohort.threshold)
    multiplier = account.planned_multiplier()
    return SharedNoise(multiplier, dimension, units, parties, dropouts, dp.colluders)


def per_patient(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Average the gradients of each patient's records, which are side by side."""
    means = [part.mean(0) for part in torch.split(rows, list(sizes))]
    return torch.stack(means) if means else rows[:0]


VALUES = 1 << 24  # of single gradients in memory


def model_gradients(site: Site, model: nn.Module) -> Gradients:
    """Return a function that computes the gradients of units, some at a time."""
    account, loss = account_of(site), task_loss(site)
    dp, units = account.settings, account.units
    width = sum(weight.numel() for weight in trained(model))
    clipping: Clipping | None = None  # the kind that computes this model's gradients correctly

    def gradients(sample: Sequence[int], coins: Coins) -> Iterator[Tensor]:
        nonlocal clipping
        if not sample:
            return
        model.train()
        size = site.at_once(dp.physical_batch or max(1, min(64, VALUES // width)))
        with secret_dropout(coins, site.device):
            if clipping is None:
                clipping = checked_clipping(model, loss, checked_records(site), "per_sample")
            optimizer = torch.optim.SGD(trained(model), lr=0.0)
            batches = PoissonBatches(len(units), 1, coins)
            bounds = Bounds(dp.max_grad_norm, clipping=clipping)
            with privately(model, optimizer, loss, bounds, batches) as private:
                for start in range(0, len(sample), size):
                    torch.manual_seed(coins.seed())
                    members = [units[unit] for unit in sample[start : start + size]]
                    rows = [row for unit in members for row in unit]
                    batch = site.train.batch(rows, site.batches_rng, site.device)
                    each = private.each(batch).detach().cpu()
                    patients = dp.unit == "patient"
                    yield per_patient(each, list(map(len, members))) if patients else each

    return gradients
