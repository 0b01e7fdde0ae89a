"""Five baselines of FedID that learn from predictions on public records.

DS-FL: Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated
Learning for Communication-Efficient Collaborative Training with Non-IID Private Data. IEEE
Transactions on Mobile Computing 22(1), 2023, arXiv 2008.06180, Sec. 3.

MHAT: Hu, Yan, Li, Pan, Liu, Zhang: MHAT: An efficient model-heterogenous aggregation training
scheme for federated learning. Information Sciences 560, 2021.

FedED: Sui, Chen, Zhao, Jia, Xie, Sun: FedED: Federated Learning via Ensemble Distillation for
Medical Relation Extraction. EMNLP 2020.

FedDF: Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020, arXiv 2006.07242, Algorithm 1, with one architecture for all parties.

Gong: Gong, Sharma, Karanam, Wu, Chen, Doermann, Innanje: Preserving Privacy in Federated Learning
with Ensemble Cross-Domain Knowledge Distillation. AAAI 2022, arXiv 2209.04599. FedID's tables call
it FedKD. It is unrelated to `algorithms/fedkd`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from secure_fl.algorithms.baselines.settings import DSFL, MHAT, FedDF, FedED, Gong
from secure_fl.algorithms.ensembles import as_shares
from secure_fl.algorithms.public_distillation import (
    Learner,
    agree_on_ensemble,
    answers,
    distil,
    learn_alone,
    logits,
    party_logits,
)
from secure_fl.algorithms.updates import Update, Weights, add_, local_update, zero_update
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.sum_names import WEIGHT

REACH = "reach"  # name in sums
SLACK = 1.001  # allows for what fixed-point rounding takes from a sum


async def dsfl(cohort: Cohort, site: Site, cfg: DSFL) -> None:
    """Run DS-FL at one member: all members learn the sharpened mean of the predictions."""
    records, ensemble = await agree_on_ensemble(cohort, site, cfg)
    model, host = site.model(), cohort.is_host
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        drawn = await ensemble.begin(round.number)
        if host:
            y = sharpened(as_shares(await ensemble.open()), cfg.temperature)
            await cohort.broadcast({"y": y.numpy()})
            if cfg.labelled:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
        else:
            if drawn:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            z = party_logits(site, cfg, model, records, records.every())
            await ensemble.send(answers(z, "soft"))
            y = torch.as_tensor((await cohort.broadcast())["y"])
        if host or drawn:
            distil(site, cfg, model, records, y, round, learner.public)
        site.score(model, round.number, "" if host else "local")
    site.deliver(model, "model" if host else "local", shared=host)


def sharpened(y: Tensor, temperature: float) -> Tensor:
    """Reduce the entropy of the ensemble: softmax(y/T)."""
    return (y / temperature).softmax(-1)


async def mhat(cohort: Cohort, site: Site, cfg: MHAT) -> None:
    """Run MHAT at one member: votes teach the central model, which then teaches the parties.

    The host's loss is the mean of its cross-entropies to each party's labels. It is linear in the
    labels, so the sum of the votes is enough.
    """
    records, ensemble = await agree_on_ensemble(cohort, site, cfg)
    model, host = site.model(), cohort.is_host
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        if not cfg.teaches(round.number):
            learn_alone(site, cfg, learner, round, ensemble.draw(round.number))
            continue
        drawn = await ensemble.begin(round.number)
        if host:
            votes = as_shares(await ensemble.open())
            if cfg.labelled:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            distil(site, cfg, model, records, votes, round, learner.public)
            y = answers(logits(site, model, records, records.every()), "soft")
            await cohort.broadcast({"y": y.cpu().numpy()})
        else:
            if drawn:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            z = party_logits(site, cfg, model, records, records.every())
            await ensemble.send(answers(z, cfg.targets))
            y = torch.as_tensor((await cohort.broadcast())["y"])
            if drawn:
                distil(site, cfg, model, records, y, round, learner.public)
        site.score(model, round.number, "" if host else "local")
    site.deliver(model, "model" if host else "local", shared=host)


async def gong(cohort: Cohort, site: Site, cfg: Gong) -> None:
    """Run Gong et al.'s method at one member: the host learns the mean of all logits, once."""
    records, ensemble = await agree_on_ensemble(cohort, site, cfg, bound=cfg.logit_bound + 1)
    model, host = site.model(), cohort.is_host
    learner = Learner.of(site, cfg, model)
    async for round in cohort.rounds(cfg.rounds, keep=learner.keep):
        drawn = await ensemble.begin(round.number)
        if host:
            z = await ensemble.open()
            if cfg.labelled:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            loss = F.mse_loss if cfg.distance == "mse" else F.l1_loss
            distil(site, cfg, model, records, z, round, learner.public, loss)
        else:
            if drawn:
                site.fit(model, cfg.epochs, round, optimizer=learner.own)
            z = party_logits(site, cfg, model, records, records.every())
            await ensemble.send(z.clamp(-cfg.logit_bound, cfg.logit_bound))
        site.score(model, round.number, "" if host else "local")
    site.deliver(model, "model" if host else "local", shared=host)


async def feded(cohort: Cohort, site: Site, cfg: FedED) -> None:
    """Run FedED at one member: predictions go up, the central model's weights come down.

    Differs: public records are unlabelled, as in FedID's paper.
    """
    records, ensemble = await agree_on_ensemble(cohort, site, cfg, same_model=True)
    model = site.model()
    shared = {"model": Weights(model, trainable(model))}
    async for round in cohort.rounds(cfg.rounds, shared=shared):
        drawn = await ensemble.begin(round.number)
        if cohort.is_host:
            y = as_shares(await ensemble.open())
            if cfg.labelled:
                site.fit(model, cfg.epochs, round)
            distil(site, cfg, model, records, y, round)  # the KL divergence has the same gradient
            await send_weights(cohort, model)
            site.score(model, round.number)
        else:
            if drawn:
                site.fit(model, cfg.epochs, round)
            z = party_logits(site, cfg, model, records, records.every())
            await ensemble.send(answers(z, "soft"))
            await receive_weights(cohort, model)
    site.deliver(model)


async def feddf(cohort: Cohort, site: Site, cfg: FedDF) -> None:
    """Run FedDF at one member: the host distils the mean of the logits into the mean model."""
    records, ensemble = await agree_on_ensemble(
        cohort, site, cfg, bound=cfg.logit_bound + 1, same_model=True
    )
    model = site.model()
    shared = {"model": Weights(model, trainable(model))}
    async for round in cohort.rounds(cfg.rounds, shared=shared):
        drawn = await ensemble.begin(round.number)
        if cohort.is_host:
            add_(model, await mean_at_host(cohort, model))  # line 7: the mean of the models
            z = await ensemble.open()
            if cfg.labelled:
                site.fit(model, cfg.epochs, round)
            y = (z / cfg.temperature).softmax(-1)
            distil(site, cfg, model, records, y, round)  # lines 8-11
            await send_weights(cohort, model)
            site.score(model, round.number)
        else:
            Δ = local_update(site, model, cfg.epochs, round) if drawn else zero_update(model)
            await send_update(cohort, Δ, ensemble.weight)  # lines 4, 5
            add_(model, Δ)
            z = party_logits(site, cfg, model, records, records.every())
            await ensemble.send(z.clamp(-cfg.logit_bound, cfg.logit_bound))
            await receive_weights(cohort, model)
    site.deliver(model)


async def send_update(cohort: Cohort, Δ: Mapping[str, Tensor], weight: float) -> None:
    """Add this party's update to the host's sum, times its share of all records.

    A sum for the host needs a public bound, so the host first opens the sum of the largest values.
    """
    weighted = {name: (weight * δ).cpu().numpy() for name, δ in Δ.items()}
    reach = max(float(abs(values).max(initial=0)) for values in weighted.values())
    await cohort.sum({REACH: [reach]}, reveal=Audience.HOST)
    bound = float((await cohort.broadcast())[REACH][0])
    # Clip and never refuse: a refusal would reveal this party's reach to a host that lies.
    clipped = {name: values.clip(-bound, bound) for name, values in weighted.items()}
    await cohort.sum({**clipped, WEIGHT: [weight * bound]}, reveal=Audience.HOST, bound=bound)


async def mean_at_host(cohort: Cohort, model: nn.Module) -> Update:
    """Open the parties' mean update, which only the host sees."""
    reach = float((await cohort.sum({REACH: [0.0]}, reveal=Audience.HOST))[REACH][0])
    bound = max(SLACK * reach, 1e-8)
    await cohort.broadcast({REACH: [bound]})
    weights = trainable(model)
    zeros = {name: torch.zeros(w.shape).numpy() for name, w in weights.items()}
    sums = await cohort.sum({**zeros, WEIGHT: [0.0]}, reveal=Audience.HOST, bound=bound)
    total = float(sums.pop(WEIGHT)[0]) / bound
    return {
        name: torch.as_tensor(sums[name] / total, dtype=w.dtype, device=w.device)
        for name, w in weights.items()
    }


async def send_weights(cohort: Cohort, model: nn.Module) -> None:
    """Send the central model from the host to all parties."""
    await cohort.broadcast({n: w.detach().cpu().numpy() for n, w in trainable(model).items()})


async def receive_weights(cohort: Cohort, model: nn.Module) -> None:
    """Replace this party's weights by those of the central model."""
    received = await cohort.broadcast()
    with torch.no_grad():
        for name, weight in trainable(model).items():
            weight.copy_(torch.as_tensor(received[name]))
