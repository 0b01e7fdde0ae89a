"""`secure-fl push`: publish a run's model with its model card."""

from __future__ import annotations

from pathlib import Path

import click

from secure_fl.cli.options import FOLDER


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
    from secure_fl.features.export import pushing
    from secure_fl.features.export.model_card import write_card

    shared = run / name
    model = shared if party is None and (shared / CARD).is_file() else model_folder(run, party)
    write_card(run, model)
    where = pushing.push(model, target, public=public, replace=replace)
    show.out().print(f"published {model} to {where}; its card is README.md there")
