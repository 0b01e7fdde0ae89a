"""`make wheelhouse` and `make release`: what they write into dist/."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from release import checksums, sbom
from release.distribution import build
from release.wheelhouse import DEVICES, gather, require_device
from secure_fl.errors import RunError

PASSPHRASE = "SECURE_FL_RELEASE_PASSPHRASE"  # noqa: S105 - the variable's name
NAME = "sealed-federation"


@click.group()
@click.option("--out", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
@click.pass_context
def main(ctx: click.Context, out: Path) -> None:
    """Make what is handed out, of the commit that is checked out."""
    if out.exists():
        fix = "remove it, or take another --out"
        raise RunError("there is something here already", fix=fix, file=out, reason="exists")
    ctx.obj = out


DEVICE = click.option("--device", type=click.Choice(DEVICES),
                      help="Refuse a torch that is built for the other.")  # fmt: skip


@main.command()
@DEVICE
@click.pass_obj
def wheelhouse(out: Path, device: str | None) -> None:
    """All wheels for a machine without network, with digests."""
    _wheelhouse(out, device)


@main.command("all")
@click.option("--key", type=click.Path(path_type=Path), help="An Ed25519 key as PEM.")
@DEVICE
@click.pass_obj
def everything(out: Path, key: Path | None, device: str | None) -> None:
    """Wheel, sdist, wheelhouse, SBOM and checksums; with --key they are signed."""
    folder = _wheelhouse(out, device)
    document = sbom.describe(folder, NAME)
    (out / "sbom.cdx.json").write_text(json.dumps(document, indent=1) + "\n")
    checksums.write(out)
    if key is None:
        click.echo("not signed: give --key (make release KEY=release.pem)")
        return
    secret = os.environ.get(PASSPHRASE)
    checksums.sign(out, key.read_bytes(), secret.encode() if secret else None)
    click.echo(f"signed; hand out {out / checksums.PUBLIC} by another way than the rest")


def _wheelhouse(out: Path, device: str | None) -> Path:
    for file in build(out):
        click.echo(file)
    (wheel,) = out.glob("*.whl")
    listed = gather(wheel, out / "wheelhouse")
    if device is not None:
        require_device(listed.parent, device)
    click.echo(f"{listed}: {len(listed.read_text().splitlines())} wheels")
    return listed.parent


main()
