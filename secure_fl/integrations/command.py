"""`secure-fl serve`: the service of a site whose training runs in another engine."""

from __future__ import annotations

from pathlib import Path

import click

from secure_fl.cli.keyring import passphrase_option
from secure_fl.cli.options import PATH, kit_option
from secure_fl.cli.service import errors_only_option, log_option, service_log


@click.command(
    epilog="""\b
Example:
  secure-fl serve site.toml --socket /run/secure-fl/site.sock
  SECURE_FL_SITE=/run/secure-fl/site.sock flower-supernode ...

The service holds the keys and the rules of the site. It ends with the run. Start it again at any
time: it continues from its disk."""
)
@click.argument("site", type=PATH)
@click.option("--socket", "at", type=PATH, required=True,
              help="Path of the socket for the engine's program.")  # fmt: skip
@kit_option
@passphrase_option
@click.option("--out", type=PATH, default=Path("runs"), show_default=True,
              help="Folder for this site's runs.")  # fmt: skip
@click.option("--go-back", is_flag=True,
              help="Allow repeated rounds after a member lost its state.")  # fmt: skip
@log_option
@errors_only_option
def serve(
    site: Path, at: Path, kit: Path, passphrase_file: Path | None, out: Path,
    go_back: bool, log_format: str, quiet: bool,
) -> None:  # fmt: skip
    """Answer for a site whose training runs in Flower or NVIDIA FLARE."""
    from secure_fl.integrations.site_service import serve as run

    with service_log(log_format, quiet=quiet) as log:
        run(site, at, kit=kit, passphrase_file=passphrase_file, out=out, goes_back=go_back)
        log.info(f"the run has finished; this site's runs are in {out}")
