"""`secure-fl push`: hand a run's model on, with its card."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  secure-fl push runs/first /srv/models/ade              into a folder
  secure-fl push runs/first hf:hospitals/ade
      to the hub you are logged in to
  secure-fl push runs/first https://hub.example/a/ade    to a hub of your own
  secure-fl push runs/study /srv/models/student --name student

The card (README.md) is written anew, with the run's audit if there was one. Audit a model before
it leaves: secure-fl audit RUN."""
)
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.argument("target")
@click.option("--name", default="model", show_default=True, help="Which shared model of the run.")
@click.option("--party", metavar="NAME", help="This hospital's own model, not the shared one.")
@click.option("--public", is_flag=True, help="Let everybody read it on the hub.")
@click.option("--replace", is_flag=True, help="Write over the folder that is there.")
def push(run: Path, target: str, name: str, party: str | None, public: bool, replace: bool) -> None:
    """Give the model of RUN to TARGET: a folder, hf:ORGANISATION/NAME, or a hub's URL."""
    from secure_fl.cli import show
    from secure_fl.cli.group import require_folder

    require_folder(run)
    from secure_fl.cli.predict import CARD, model_folder
    from secure_fl.runs import pushing
    from secure_fl.runs.model_card import write_card

    shared = run / name
    model = shared if party is None and (shared / CARD).is_file() else model_folder(run, party)
    write_card(run, model)
    where = pushing.push(model, target, public=public, replace=replace)
    show.out().print(f"{model} is now {where}; its card is README.md there.")
