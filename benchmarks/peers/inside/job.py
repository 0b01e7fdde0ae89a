"""The job that every system gets: a model, each site's records, and how a site trains on them.

This file runs in each peer's own environment, so it needs torch, transformers and numpy alone. The
systems differ in everything else: how weights travel, what protects them, who is waited for.
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
FOLDER = "PEERS_JOB"  # the environment variable that names the job's folder
TRAINED = "trained.jsonl"  # who trained when, in the job's `out` folder
FINAL = "final.npz"  # the weights that a system ended with
SIZE = 64  # records that are only looked at, together
MISHAP = "PEERS_MISHAP"  # the environment variable that says what goes wrong, and at which site
KEPT = "kept"  # what each site got and sent, in the `out` folder, where something goes wrong
TAPPED = "tapped"  # what a server that listens held
FIRST_BAD = 2  # the round from which on something is wrong


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
        """How many sites a round needs, at each system that lets one say so: all but one."""
        return len(self.sites) - bool(self.wrong)

    def model(self) -> torch.nn.Module:
        """The model that all begin with; its embeddings are not trained."""
        model: torch.nn.Module = AutoModelForSequenceClassification.from_pretrained(
            self.folder / "model"
        )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("embeddings" not in name)
        return model

    def records(self, site: str) -> int:
        """How many records a site trains on."""
        return len(self.rows(f"sites/{site}.npz")["labels"])

    def order(self, site: str, round: int) -> torch.Tensor:
        """The order of a site's records in a round, from 1: every system draws the same."""
        generator = torch.Generator().manual_seed(self.seeds[site])
        for _ in range(round):
            order = torch.randperm(self.records(site), generator=generator)
        return order

    def train(self, model: torch.nn.Module, site: str, round: int) -> float:
        """One pass over a site's records by a fresh AdamW; the mean loss."""
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
        """A fresh AdamW, which clips the gradient before each step."""
        moving = [p for p in model.parameters() if p.requires_grad]
        made = torch.optim.AdamW(moving, lr=self.learning_rate, weight_decay=0.01, fused=True)

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(moving, 1.0)

        made.register_step_pre_hook(clip)
        return made

    def begin(self, site: str, round: int) -> None:
        """Note that a site begins a round, where a system trains by a loop of its own."""
        self._note({"site": site, "round": round, "began": time.time()})

    def sent(self, model: torch.nn.Module, site: str, round: int) -> dict[str, Array]:
        """What a site sends once it has trained, with what is to be wrong about it."""
        weights = trained(model)
        self.keep("sent", site, round, weights)
        if self.wrong in SPOILT and site == self.where and round >= FIRST_BAD:
            return SPOILT[self.wrong](weights, self.kept("sent", site, round - 1))
        return weights

    def keep(self, what: str, site: str, round: int, weights: Mapping[str, Array]) -> None:
        """Keep what a site got or sent, where something goes wrong."""
        if self.wrong:
            (self.out / KEPT).mkdir(parents=True, exist_ok=True)
            save(self.out / KEPT / f"{what}-{site}-{round}.npz", weights)

    def tap(self, round: int, number: int, held: Mapping[str, Array]) -> None:
        """Keep what a server that listens holds of one site."""
        (self.out / TAPPED).mkdir(parents=True, exist_ok=True)
        save(self.out / TAPPED / f"{round}-{number}.npz", held)

    def kept(self, what: str, site: str, round: int) -> dict[str, Array]:
        """What was kept."""
        with np.load(self.out / KEPT / f"{what}-{site}-{round}.npz") as found:
            return dict(found)

    def note_rounds(self, begins: list[float]) -> None:
        """Note when rounds began, where no site says so."""
        for number, began in enumerate(begins, 1):
            self._note({"round": number, "began": began})

    @torch.no_grad()
    def test(self, model: torch.nn.Module) -> float:
        """Accuracy on the test records of all sites."""
        rows = self.rows("test.npz")
        hits, model = [], model.eval()
        for picked in torch.split(torch.arange(len(rows["labels"])), SIZE):
            given = batch(rows, picked)
            hits.append(model(**given).logits.argmax(-1) == given["labels"])
        return float(torch.cat(hits).float().mean())

    def finish(self, weights: Mapping[str, Any]) -> None:
        """Keep the weights that a system ended with."""
        self.out.mkdir(parents=True, exist_ok=True)
        save(self.out / FINAL, weights)

    @property
    def out(self) -> Path:
        """Where a run's results lie."""
        return Path(os.environ.get("PEERS_OUT", self.folder / "out"))

    def rows(self, name: str) -> Mapping[str, Array]:
        """A table of records."""
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
    """These records, as wide as the longest of them."""
    index = picked.numpy()
    wide = int(rows["attention_mask"][index].sum(1).max())
    return {
        name: torch.as_tensor(values[index] if name == "labels" else values[index, :wide])
        for name, values in rows.items()
    }


def trained(model: torch.nn.Module) -> dict[str, Array]:
    """The weights that travel."""
    return {
        name: p.detach().cpu().numpy().copy()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


@torch.no_grad()
def take(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Go on from these weights."""
    parameters = dict(model.named_parameters())
    for name, values in weights.items():
        parameters[name].copy_(torch.as_tensor(np.asarray(values)))


def wider(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Every array with one column more: what a model of another width has."""
    return {n: np.concatenate([w, w[..., -1:]], axis=-1) for n, w in weights.items()}


# What may be wrong about what a site sends: of its weights, and of those that it sent before.
SPOILT: Mapping[str, Callable[[Mapping[str, Array], Mapping[str, Array]], dict[str, Array]]] = {
    "nan": lambda now, before: {n: np.full_like(w, np.nan) for n, w in now.items()},
    "model": lambda now, before: wider(now),
    "again": lambda now, before: dict(before),
}
