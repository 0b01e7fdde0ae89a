"""`secure-fl completion`: the script that teaches a shell our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from secure_fl.cli.choices import Names

PROGRAM, VARIABLE = "secure-fl", "_SECURE_FL_COMPLETE"


@click.command(
    epilog="""\b
Examples:
  secure-fl completion bash > ~/.local/share/bash-completion/completions/secure-fl
  secure-fl completion zsh > ~/.zfunc/_secure-fl
      (a folder of your $fpath)
  secure-fl completion fish > ~/.config/fish/completions/secure-fl.fish"""
)
@click.argument("shell", type=Names(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"this version of click knows no {shell}")
    root = ctx.find_root().command
    # `source()` would first start bash to ask its version; the template needs no such check.
    script = found(root, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
