"""Assembly of a coordinator: links, blind totals and the machine.

`federation.assembly` is the party's counterpart. It is a separate module because a coordinator's
process never loads code that can use secret keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.events import EventLog
from secure_fl.protocol.frames import Link
from secure_fl.protocol.ports import TotalFor
from secure_fl.settings import ProtectionSettings

Between = Callable[[tuple[str, ...], tuple[str, ...]], None]


def links_to(
    members: Mapping[str, PublicIdentity], me: Identity, run: bytes, link: type[Link] = Link
) -> dict[str, Link]:
    """Make the coordinator's end of a link to each member of a run."""
    return {name: link(run, me, card, asks=True) for name, card in members.items()}


def lead_run(
    links: Mapping[str, Link],
    engine: Engine,
    rules: CoordinatorRules,
    protection: ProtectionSettings,
    *,
    recorder: EventLog | None = None,
    roster: Sequence[str] | None = None,
    between: Between = lambda members, newcomers: None,
    totals: TotalFor | None = None,
    make: Callable[..., Coordinator] | None = None,
) -> Coordinator:
    """Assemble the coordinator of one run; its `run()` returns when every party is done.

    `roster`: all members that hold shares of masks, if some of them are not linked.
    `between`: gets the members and the newcomers before each round, and may stop the run.
    `totals`, `make`: replacements for the blind sums and the machine, for tests and audits.
    """
    (run,) = {link.run for link in links.values()}
    totals = totals or blind_totals(
        protection, roster or list(links), host=rules.host, threshold=rules.threshold, run=run
    )
    make = make or Coordinator
    return make(links, engine, rules, totals, recorder or EventLog("coordinator"), between)
