"""`make wheelhouse` and `make release`, which write into dist/, and the check of a release."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from release import checksums, provenance, sbom
from release.distribution import build
from release.wheelhouse import DEVICES, gather, require_device
from secure_fl.errors import RunError

PASSPHRASE = "SECURE_FL_RELEASE_PASSPHRASE"  # noqa: S105 - the variable's name
NAME = "sealed-federation"


@click.group()
@click.option("--out", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
@click.pass_context
def main(ctx: click.Context, out: Path) -> None:
    """Make a release of the commit that is checked out, or verify one."""
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
    text = os.environ.get(PASSPHRASE)
    secret, pem = text.encode() if text else None, key.read_bytes()
    checksums.sign(out, pem, secret)
    provenance.write(out, provenance.commit_of(), pem, secret)
    click.echo(f"signed; hand out {out / checksums.PUBLIC} by another way than the rest")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--public", type=click.Path(path_type=Path, exists=True), required=True,
              help="The public key, which came another way.")  # fmt: skip
@click.option("--rebuild", is_flag=True, help="Also build this checkout, and compare the bytes.")
def verify(folder: Path, public: Path, rebuild: bool) -> None:
    """Check the signed statement of a release, and every file in it."""
    statement = provenance.verify(folder, public.read_bytes())
    commit = statement["predicate"]["buildDefinition"]["externalParameters"]["commit"]
    click.echo(f"signed, all digests agree: commit {commit}")
    if rebuild:
        with tempfile.TemporaryDirectory(prefix="secure-fl-") as place:
            provenance.require_same_build(statement, build(Path(place) / "dist"))
        click.echo("a build of this checkout gives the same bytes")


def _wheelhouse(out: Path, device: str | None) -> Path:
    if out.exists():
        fix = "remove it, or take another --out"
        raise RunError("there is something here already", fix=fix, file=out, reason="exists")
    for file in build(out):
        click.echo(file)
    (wheel,) = out.glob("*.whl")
    listed = gather(wheel, out / "wheelhouse")
    if device is not None:
        require_device(listed.parent, device)
    click.echo(f"{listed}: {len(listed.read_text().splitlines())} wheels")
    return listed.parent


main()
