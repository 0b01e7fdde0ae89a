"""The job of every system: a model, each site's records, and the training of a site.

This file runs in each system's environment, so it needs torch, transformers and numpy only. Systems
differ in everything else: transport, protection, and waiting for sites.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

Array = np.ndarray[Any, Any]
FOLDER = "PEERS_JOB"  # environment variable with the job's folder
TRAINED = "trained.jsonl"  # times of each site's training, in the `out` folder
FINAL = "final.npz"  # the final weights
SIZE = 64  # batch size of tests
MISHAP = "PEERS_MISHAP"  # environment variable with the mishap and its site
KEPT = "kept"  # weights that each site got and sent, in runs with a mishap
TAPPED = "tapped"  # values that an eavesdropping server held
FIRST_BAD = 2  # first round with the mishap


class Job:
    """A job's folder: `job.json`, `model/`, `sites/NAME.npz` and `test.npz`."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder or os.environ[FOLDER])
        about = json.loads((self.folder / "job.json").read_text())
        torch.set_num_threads(about["threads"])
        self.sites: list[str] = about["sites"]
        self.rounds: int = about["rounds"]
        self.batch_size: int = about["batch_size"]
        self.learning_rate: float = about["learning_rate"]
        self.seeds: dict[str, int] = about["seeds"]
        self.wrong, self.where = [*os.environ.get(MISHAP, "").split(), "", ""][:2]

    @property
    def enough(self) -> int:
        """The number of sites that a round needs: all, or all but one with a mishap."""
        return len(self.sites) - bool(self.wrong)

    def model(self) -> torch.nn.Module:
        """Load the initial model, with frozen embeddings."""
        model: torch.nn.Module = AutoModelForSequenceClassification.from_pretrained(
            self.folder / "model"
        )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("embeddings" not in name)
        return model

    def records(self, site: str) -> int:
        """Count a site's training records."""
        return len(self.rows(f"sites/{site}.npz")["labels"])

    def order(self, site: str, round: int) -> torch.Tensor:
        """Draw the order of a site's records in a round, from 1; all systems draw the same."""
        generator = torch.Generator().manual_seed(self.seeds[site])
        for _ in range(round):
            order = torch.randperm(self.records(site), generator=generator)
        return order

    def train(self, model: torch.nn.Module, site: str, round: int) -> float:
        """Make one pass over a site's records with a new AdamW, and return the mean loss."""
        began, spent = time.time(), time.process_time()
        self.keep("got", site, round, trained(model))
        rows = self.rows(f"sites/{site}.npz")
        optimizer = self.optimizer(model)
        model.train()
        losses = []
        for picked in torch.split(self.order(site, round), self.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = model(**batch(rows, picked)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self._note(
            {
                "site": site,
                "round": round,
                "began": began,
                "cpu": time.process_time() - spent,
            }
        )
        return float(np.mean(losses))

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Make an AdamW that clips the gradient before each step."""
        moving = [p for p in model.parameters() if p.requires_grad]
        made = torch.optim.AdamW(moving, lr=self.learning_rate, weight_decay=0.01, fused=True)

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(moving, 1.0)

        made.register_step_pre_hook(clip)
        return made

    def begin(self, site: str, round: int) -> None:
        """Record that a site begins a round, for systems with their own training loop."""
        self._note({"site": site, "round": round, "began": time.time()})

    def sent(self, model: torch.nn.Module, site: str, round: int) -> dict[str, Array]:
        """Return the weights that a site sends after training, spoilt if it lies."""
        weights = trained(model)
        self.keep("sent", site, round, weights)
        if self.wrong in SPOILT and site == self.where and round >= FIRST_BAD:
            return SPOILT[self.wrong](weights, self.kept("sent", site, round - 1))
        return weights

    def keep(self, what: str, site: str, round: int, weights: Mapping[str, Array]) -> None:
        """Save the weights that a site got or sent, in runs with a mishap."""
        if self.wrong:
            (self.out / KEPT).mkdir(parents=True, exist_ok=True)
            save(self.out / KEPT / f"{what}-{site}-{round}.npz", weights)

    def tap(self, round: int, number: int, held: Mapping[str, Array]) -> None:
        """Save the values of one site that an eavesdropping server holds."""
        (self.out / TAPPED).mkdir(parents=True, exist_ok=True)
        save(self.out / TAPPED / f"{round}-{number}.npz", held)

    def kept(self, what: str, site: str, round: int) -> dict[str, Array]:
        """Load saved weights."""
        with np.load(self.out / KEPT / f"{what}-{site}-{round}.npz") as found:
            return dict(found)

    def note_rounds(self, begins: list[float]) -> None:
        """Record the begin of rounds, where sites do not record it."""
        for number, began in enumerate(begins, 1):
            self._note({"round": number, "began": began})

    @torch.no_grad()
    def test(self, model: torch.nn.Module) -> float:
        """Compute the accuracy on the test records of all sites."""
        rows = self.rows("test.npz")
        hits, model = [], model.eval()
        for picked in torch.split(torch.arange(len(rows["labels"])), SIZE):
            given = batch(rows, picked)
            hits.append(model(**given).logits.argmax(-1) == given["labels"])
        return float(torch.cat(hits).float().mean())

    def finish(self, weights: Mapping[str, Any]) -> None:
        """Save the final weights."""
        self.out.mkdir(parents=True, exist_ok=True)
        save(self.out / FINAL, weights)

    @property
    def out(self) -> Path:
        """The folder of a run's results."""
        return Path(os.environ.get("PEERS_OUT", self.folder / "out"))

    def rows(self, name: str) -> Mapping[str, Array]:
        """Load a table of records."""
        with np.load(self.folder / name) as found:
            return dict(found)

    def _note(self, said: Mapping[str, Any]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / TRAINED).open("a") as file:
            file.write(json.dumps(said) + "\n")


def save(file: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name."""
    np.savez(file, allow_pickle=False, **{name: np.asarray(a) for name, a in arrays.items()})


def batch(rows: Mapping[str, Array], picked: torch.Tensor) -> dict[str, Any]:
    """Select records, as wide as the longest of them."""
    index = picked.numpy()
    wide = int(rows["attention_mask"][index].sum(1).max())
    return {
        name: torch.as_tensor(values[index] if name == "labels" else values[index, :wide])
        for name, values in rows.items()
    }


def trained(model: torch.nn.Module) -> dict[str, Array]:
    """Copy the trained weights."""
    return {
        name: p.detach().cpu().numpy().copy()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


@torch.no_grad()
def take(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights into a model."""
    parameters = dict(model.named_parameters())
    for name, values in weights.items():
        parameters[name].copy_(torch.as_tensor(np.asarray(values)))


def wider(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Add a column to every array, as of a wider model."""
    return {n: np.concatenate([w, w[..., -1:]], axis=-1) for n, w in weights.items()}


# Lies of a site: functions of its weights and of those that it sent in the previous round.
SPOILT: Mapping[str, Callable[[Mapping[str, Array], Mapping[str, Array]], dict[str, Array]]] = {
    "nan": lambda now, before: {n: np.full_like(w, np.nan) for n, w in now.items()},
    "model": lambda now, before: wider(now),
    "again": lambda now, before: dict(before),
}
