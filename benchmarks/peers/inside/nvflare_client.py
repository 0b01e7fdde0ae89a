"""A site's script, by NVFLARE's client API."""

from __future__ import annotations

import nvflare.client as flare
import torch
from job import Job, take
from nvflare_model import DOT

flare.init()
job, site = Job(), flare.get_site_name()
model = job.model()
while flare.is_running():
    given = flare.receive()
    take(model, {name.replace(DOT, "."): values for name, values in given.params.items()})
    round = given.current_round + 1
    loss = job.train(model, site, round)
    flare.send(
        flare.FLModel(
            params={
                name.replace(".", DOT): torch.as_tensor(values)
                for name, values in job.sent(model, site, round).items()
            },
            metrics={"loss": loss},
            meta={"NUM_STEPS_CURRENT_ROUND": job.records(site)},
        )
    )
