"""`secure-fl site approve` and `site erase`: what people at a hospital decide, on its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.keyring import FILE, open_ring

if TYPE_CHECKING:
    from secure_fl.policy.policy_file import SiteFile


@click.command(
    epilog="""\b
Example:
  secure-fl keys identity anna --keys anna
      once; [site.approval] lists its fingerprint
  secure-fl site approve site.toml --plan kit/plan.toml --keys anna

It is on record when `join` accepts the plan. A plan or rules that change need a new one."""
)
@click.argument("file", metavar="SITE", type=FILE)
@click.option("--plan", type=FILE, required=True, help="The kit's, or approvals/asked.toml.")
@click.option("--keys", "folder", type=FILE, required=True, help="The keys of who approves.")
@click.option("--kit", type=FILE, help="As `site check` opened it.  [kit beside SITE]")
@click.option("--passphrase-file", type=FILE, help="Of these keys.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def approve(
    file: Path,
    plan: Path,
    folder: Path,
    kit: Path | None,
    passphrase_file: Path | None,
    yes: bool,
) -> None:
    """Approve a PLAN under the rules of SITE, with a person's own keys."""
    from secure_fl.pilot.approvals import FOLDER, Approval, Papers, rules_of
    from secure_fl.pilot.kits import load_kit
    from secure_fl.pilot.plan import load_proposal, write_plan
    from secure_fl.policy.describe import describe
    from secure_fl.policy.policy_file import load_site

    rules, proposal = load_site(file), load_proposal(plan)
    me = open_ring(folder, passphrase_file).identity()
    _require_listed(rules, me.public.fingerprint())
    name = load_kit(kit or file.absolute().parent / "kit").connection.name
    for line in (*describe(rules.policy), write_plan(proposal)):
        click.echo(line)
    question = f"{me.name}: do you approve this plan under these rules, for {name}?"
    if not yes and not click.confirm(question, err=True):
        return
    approval = Approval.make(me, name, proposal, rules_of(rules))
    paper = Papers(file.absolute().parent / FOLDER, name).add(approval)
    facts = approval.facts()
    click.echo(f"approved: plan {facts['plan']}, rules {facts['rules']}\nwritten: {paper}")


@click.command(
    epilog="""\b
Example:
  secure-fl site erase site.toml --passphrase-file passphrase
      what is due, after a question

A run is due when nothing has happened in it for retention_days of [site]. Its rows in the ledger of
privacy, its seed, and over whom its sums were opened stay: later refusals rest on them."""
)
@click.argument("file", metavar="SITE", type=FILE)
@click.option("--runs", type=FILE, default=Path("runs"), show_default=True, help="This site's.")
@click.option("--run", "chosen", metavar="NAME", help="This one, due or not.")
@click.option("--passphrase-file", type=FILE, help="Read the passphrase from this file.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase(
    file: Path, runs: Path, chosen: str | None, passphrase_file: Path | None, yes: bool
) -> None:
    """Erase the runs that are due by the rules of SITE, and note it in the site's ledger."""
    from secure_fl.cli import show
    from secure_fl.crypto.privacy.ledger import Ledger
    from secure_fl.learning.dp.scope import LEDGER
    from secure_fl.policy.policy_file import load_site
    from secure_fl.runs import erasing

    rules = load_site(file)
    found = [runs / chosen] if chosen else erasing.due(runs, _days(rules))
    for run in found:
        erasing.require_erasable(run)
        click.echo(f"{run}: {show.size(erasing.size([run]))}")
    if not found:
        click.echo(f"nothing in {runs} is due")
        return
    me = open_ring(rules.keys, passphrase_file).identity()
    ledger = Ledger(rules.ledger / me.name / LEDGER, me)
    ledger.require_sound()  # before anything is gone that it should tell of
    if not yes and not click.confirm("erase them, and note it in the ledger?", err=True):
        return
    for run in found:
        reason = "asked for by name" if chosen else f"{_days(rules)} days after its last event"
        freed = erasing.size([run])
        erasing.erase([run])
        ledger.note("erased", json.dumps({"why": reason, "bytes": freed}), run=run.name)
        click.echo(f"erased: {run}")


def _days(rules: SiteFile) -> int:
    from secure_fl.errors import SettingsError

    if (days := rules.policy.retention_days) is None:
        what, fix = "the rules name no time after which runs go", "set retention_days in [site]"
        raise SettingsError(what, file=str(rules.file), fix=fix, field="site.retention_days")
    return days


def _require_listed(rules: SiteFile, fingerprint: str) -> None:
    from secure_fl.errors import KeyringError

    rule = rules.policy.approval
    if rule is None or fingerprint not in rule.by:
        raise KeyringError(
            "the rules do not list these keys among those that approve",
            file=rules.file,
            fix=f'add "{fingerprint}" to by in [site.approval]; it is the card\'s fingerprint',
            reason="not-listed",
        )
