"""`secure-fl completion`: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from secure_fl.cli.options import Names

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
    completer = get_completion_class(shell)
    if completer is None:
        raise click.UsageError(f"this version of click does not support {shell}")
    root = ctx.find_root().command
    # `source()` starts bash to check its version; the template needs no check.
    script = completer(root, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
