"""`secure-fl push`: publish a run's model with its model card."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import click

from secure_fl.cli.options import FOLDER
from secure_fl.errors import RunError

HUB = "hf:"  # before ORGANISATION/NAME: the hub that huggingface_hub is set up for


def publish(model: Path, target: str, *, public: bool = False, replace: bool = False) -> str:
    """Copy a model's folder to a target; return where it is now.

    A target is a folder, `hf:ORGANISATION/NAME`, or a hub's own https://HUB/ORGANISATION/NAME. On
    a hub the model is private unless it is said to be public.
    """
    if target.startswith(HUB):
        return _to_hub(model, None, target.removeprefix(HUB), public=public)
    if "://" in target:
        parts = urlsplit(target)
        if parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1"):
            endpoint = f"{parts.scheme}://{parts.netloc}"
            return _to_hub(model, endpoint, parts.path.strip("/"), public=public)
        raise RunError(
            "models go to hubs by https only",
            fix="give https://HUB/ORGANISATION/NAME",
            reason="malformed",
        )
    return _to_folder(model, Path(target).expanduser(), replace=replace)


def _to_folder(model: Path, target: Path, *, replace: bool) -> str:
    """Copy all, under another name first: a folder is whole, or it is not there."""
    from secure_fl.features.export.model_card import TASK

    if target.exists() and not (replace and (target / TASK).is_file()):
        raise RunError(
            "there is something already, and only a model is replaced, and only if you say so",
            fix="give a folder that is not there, or --replace where a model of ours is",
            file=target,
            reason="exists",
        )
    fresh = target.with_name(f".{target.name}.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(model, fresh)
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    except OSError as error:
        raise RunError(
            f"the model cannot be written there ({error.strerror})",
            fix="give a folder on a disk with space, that you may write",
            file=target,
            reason="unwritable",
        ) from error
    return str(target)


def _to_hub(model: Path, endpoint: str | None, name: str, *, public: bool) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    api = HfApi(endpoint=endpoint)
    try:
        where = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=where.repo_id, folder_path=model)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunError(
            f"the hub did not take the model: {first}",
            fix="log in (hf auth login, or HF_TOKEN), and give a name that you may write to",
            reason="unwritable",
        ) from error
    return str(where)


@click.command(
    epilog="""\b
Examples:
  secure-fl push runs/first /srv/models/ade              into a folder
  secure-fl push runs/first hf:hospitals/ade
      to the hub you are logged in to
  secure-fl push runs/first https://hub.example/a/ade    to your own hub
  secure-fl push runs/study /srv/models/student --name student

The command rewrites the card (README.md), with the run's audit if there is one. Audit a model
before you publish it: secure-fl audit RUN."""
)
@click.argument("run", type=FOLDER)
@click.argument("target")
@click.option("--name", default="model", show_default=True, help="Name of a shared model.")
@click.option("--party", metavar="NAME", help="Publish this hospital's own model.")
@click.option("--public", is_flag=True, help="Make it public on the hub.")
@click.option("--replace", is_flag=True, help="Replace an existing folder.")
def push(run: Path, target: str, name: str, party: str | None, public: bool, replace: bool) -> None:
    """Publish the model of RUN to TARGET: a folder, hf:ORGANISATION/NAME, or a hub's URL."""
    from secure_fl.cli import show
    from secure_fl.cli.group import require_folder

    require_folder(run)
    from secure_fl.cli.predict import CARD, model_folder
    from secure_fl.features.export.model_card import require_covered, write_card

    shared = run / name
    model = shared if party is None and (shared / CARD).is_file() else model_folder(run, party)
    require_covered(run, model)
    write_card(run, model)
    where = publish(model, target, public=public, replace=replace)
    show.out().print(f"published {model} to {where}; its card is README.md there")
