"""Options for a site's keys, and the passphrase that opens them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from secure_fl.cli.options import PATH
from secure_fl.crypto.keys.files import read_bounded, write_atomic
from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.vault import DEFAULT_COST, Cost, check_private
from secure_fl.errors import KeyringError

PASSPHRASE = "SECURE_FL_PASSPHRASE"  # noqa: S105 - the variable's name
SHORTEST = 12
F = TypeVar("F", bound=Callable[..., object])

passphrase_option = click.option(
    "--passphrase-file",
    type=PATH,
    help=f"File with the passphrase (mode 0600); else ${PASSPHRASE}, else a prompt.",
)


def keys_option(command: F) -> F:
    """Add --keys and --passphrase-file."""
    option = click.option("--keys", "folder", type=PATH, default=Path("keys"), show_default=True,
                          envvar="SECURE_FL_KEYS", show_envvar=True, help="This site's key folder.",
                          )  # fmt: skip
    return option(passphrase_option(command))


def open_ring(folder: Path, passphrase_file: Path | None, *, fresh: bool = False) -> KeyRing:
    """Return the key ring of a folder; `fresh` keys need a long passphrase, or a generated one."""
    passphrase = _passphrase(passphrase_file, confirm=fresh)
    if fresh and len(passphrase) < SHORTEST:
        what = f"the passphrase is shorter than {SHORTEST} characters"
        fix = "choose four words or more: it alone protects the keys on a stolen disk"
        raise KeyringError(what, fix=fix, reason="passphrase")
    return KeyRing(folder, passphrase, _cost())


def _passphrase(file: Path | None, *, confirm: bool) -> str:
    if file is not None:
        if confirm and not file.exists():
            write_atomic(file, secrets.token_urlsafe(24).encode(), mode=0o600)
            click.echo(f"Wrote a new passphrase to {file}. Keep a copy somewhere else.")
        check_private(file, 0o600)
        try:
            return read_bounded(file).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            fix = "write the passphrase into it again, as plain text"
            raise KeyringError(
                "is not UTF-8 text", file=file, fix=fix, reason="passphrase"
            ) from None
    if (value := os.environ.get(PASSPHRASE)) is not None:
        return value
    try:
        return str(click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm))
    except click.Abort:
        what, fix = "there is no passphrase", f"set {PASSPHRASE} or use --passphrase-file"
        raise KeyringError(what, fix=fix, reason="passphrase") from None


def _cost() -> Cost:
    # An environment variable, for small machines and tests; key files record their cost.
    text = os.environ.get("SECURE_FL_SCRYPT_LOG_N", str(DEFAULT_COST.log_n))
    if not text.isdigit() or not 10 <= int(text) <= 20:
        what, fix = f"SECURE_FL_SCRYPT_LOG_N is {text!r}", "use 10 to 20; the default is 15"
        raise KeyringError(what, fix=fix, reason="invalid-option")
    return Cost(log_n=int(text))
