"""`secure-fl push`: publish a run's model with its model card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from secure_fl.cli.options import FOLDER
from secure_fl.errors import RunError

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

HUB = "hf:"  # prefix of ORGANISATION/NAME on the hub that huggingface_hub is configured for
URL = "://"
DEFAULT = "model"  # name of the shared model to publish


def publish(model: Path, target: str, *, public: bool = False, replace: bool = False) -> str:
    """Copy a model's folder to a target; return its new location.

    A target is a folder, `hf:ORGANISATION/NAME`, or a hub's own https://HUB/ORGANISATION/NAME. On
    a hub the model is private unless `public` is True: a repository of the other kind is refused.
    `replace` is required for a target that has a model, whose other files are removed.
    """
    if target.startswith(HUB):
        return _to_hub(model, None, target.removeprefix(HUB), public=public, replace=replace)
    if URL in target:
        parts = urlsplit(target)
        if parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1"):
            endpoint = f"{parts.scheme}://{parts.netloc}"
            name = parts.path.strip("/")
            return _to_hub(model, endpoint, name, public=public, replace=replace)
        raise RunError(
            f"models are sent to hubs by https only, and this URL begins with {parts.scheme}://",
            fix="give https://HUB/ORGANISATION/NAME",
            reason="malformed",
        )
    return _to_folder(model, Path(target).expanduser(), replace=replace)


def require_free(target: Path, *, replace: bool) -> None:
    """Refuse an existing target, unless it is a model of secure-fl that is to be replaced."""
    from secure_fl.features.export.model_card import TASK as MODEL_MARKER

    if not target.exists():
        return
    if not (target / MODEL_MARKER).is_file():
        what, fix = "the target exists and is no model of secure-fl", "choose a new folder"
    elif not replace:
        what, fix = "the target exists", "choose a new folder, or add --replace"
    else:
        return
    raise RunError(what, fix=fix, file=target, reason="exists")


def _to_folder(model: Path, target: Path, *, replace: bool) -> str:
    """Copy the model under a temporary name, then rename it: no target is half written."""
    require_free(target, replace=replace)
    temporary = target.with_name(f".{target.name}.new")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(model, temporary)
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
    except OSError as error:
        raise RunError(
            f"the model cannot be written there ({error.strerror})",
            fix="choose a folder on a disk with free space in which you may write",
            file=target,
            reason="unwritable",
        ) from error
    return str(target)


def require_fit(info: ModelInfo, *, public: bool, replace: bool) -> None:
    """Refuse a repository with other readers, or with files that are not to be replaced."""
    from secure_fl.features.export.model_card import TASK as MODEL_MARKER

    files = {file.rfilename for file in info.siblings or ()} - {".gitattributes"}
    if info.private is not (not public):
        what = f"the repository {info.id} exists, and is {'private' if public else 'public'}"
        change = "leave out --public" if public else "add --public"
        fix = f"choose a new name, change the repository's visibility on the hub, or {change}"
    elif files and MODEL_MARKER not in files:
        what = f"the repository {info.id} has files, and no model of secure-fl"
        fix = "choose a new name"
    elif files and not replace:
        what, fix = f"the repository {info.id} has a model", "choose a new name, or add --replace"
    else:
        return
    raise RunError(what, fix=fix, reason="exists")


def _to_hub(model: Path, endpoint: str | None, name: str, *, public: bool, replace: bool) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    api = HfApi(endpoint=endpoint)
    try:
        where = api.create_repo(name, private=not public, exist_ok=True)
        require_fit(api.model_info(where.repo_id), public=public, replace=replace)
        old = "*" if replace else None  # files that the new model does not have
        api.upload_folder(repo_id=where.repo_id, folder_path=model, delete_patterns=old)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunError(
            f"the hub rejected the upload: {first}",
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
@click.option("--name", help="Shared model in RUN.  [default: model, or the one to use]")
@click.option("--party", metavar="NAME", help="Publish this hospital's own model.")
@click.option("--public", is_flag=True, help="Make it public on the hub.")
@click.option("--replace", is_flag=True, help="Replace an existing model.")
def push(
    run: Path, target: str, name: str | None, party: str | None, public: bool, replace: bool
) -> None:
    """Publish the model of RUN to TARGET: a folder, hf:ORGANISATION/NAME, or a hub's URL."""
    from secure_fl.cli import show
    from secure_fl.cli.group import require_folder

    if name is not None and party is not None:
        raise click.UsageError("give either --name or --party: a hospital's own model has no name")
    require_folder(run)
    from secure_fl.cli.predict import CARD, model_folder
    from secure_fl.features.export.model_card import require_covered, write_card

    if name is None and party is None and (run / DEFAULT / CARD).is_file():
        name = DEFAULT  # even if the run recommends another one of its models
    model = model_folder(run, party, name)
    require_covered(run, model)
    if not target.startswith(HUB) and URL not in target:
        require_free(Path(target).expanduser(), replace=replace)
    write_card(run, model)
    where = publish(model, target, public=public, replace=replace)
    show.out().print(f"published {model} to {where}; its card is README.md there")
