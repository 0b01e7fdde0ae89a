"""A script that joins a pilot, with everything that `secure-fl join` has."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, DataError
from secure_fl.events import Event, Refused
from secure_fl.features.scripts.algorithm import Script
from secure_fl.features.scripts.cohort import ScriptCohort
from secure_fl.features.scripts.turns import (
    LastMessage,
    ScriptHandle,
    ThreadChannel,
    thread_channels,
)

if TYPE_CHECKING:
    from secure_fl.crypto.keys.roster import Member
    from secure_fl.pilot.hospital import HospitalProcess
    from secure_fl.pilot.kits import Kit
    from secure_fl.policy.plan import Plan
    from secure_fl.protocol.frames import Frame

Connect: TypeAlias = (
    "Callable[[HospitalProcess, Kit, logging.Logger], AbstractContextManager[Party]]"
)
GRACE = 30.0  # seconds until a failed script leaves, if the coordinator does not end the run


class RunningFile(NamedTuple):
    """The file of the program that runs."""

    file: str | None
    sha256: str


class Party(Protocol):
    """A hospital's end of a way to the coordinator."""

    def serve(self, step: Callable[[Frame], Frame]) -> None:
        """Answer frames until the run ends, or `stop`."""

    def stop(self) -> None:
        """End `serve`."""


@contextmanager
def join(
    site: Path | str,
    *,
    kit: Path | str = "kit",
    passphrase_file: Path | str | None = None,
    out: Path | str = "runs",
    goes_back: bool = False,
    connect: Connect | None = None,
) -> Iterator[ScriptCohort]:
    """Join a pilot under the rules of the site's file; the block is the site's script.

    It waits until the run begins. A script that is started again continues from its disk.

    Args:
        site: The site's file, as for `secure-fl join`.
        kit: Folder of the site's kit.
        passphrase_file: File with the passphrase of the keys. Default: it is asked for.
        out: Folder for this site's runs.
        goes_back: Allow repeated rounds after another site lost its state.
        connect: Another way to the coordinator. Default: the network.

    """
    from secure_fl.cli.join import connected, hospital_of, log_rules
    from secure_fl.cli.service import PILOT_LOG
    from secure_fl.pilot.kits import load_kit
    from secure_fl.policy.policy_file import load_site

    channel, programs_channel = thread_channels()
    script = ScriptHandle(programs_channel)
    rules, opened = load_site(Path(site)), load_kit(Path(kit))
    name, log = opened.connection.name, logging.getLogger(PILOT_LOG)
    passphrase = None if passphrase_file is None else Path(passphrase_file)
    refusals = Refusals(log)
    records = partial(_silo, script, running_file(), opened.roster.member(name))
    with ExitStack() as stack:
        stack.enter_context(_shown(log))
        hospital = hospital_of(
            rules, opened, passphrase, Path(out), refusals, goes_back=goes_back, records=records
        )
        stack.callback(hospital.close)
        log_rules(rules, opened, log)
        way = connect(hospital, opened, log) if connect else connected(opened, log)
        service = Service(stack.enter_context(way), hospital, script, refusals)
        yield stack.enter_context(service.serving(name, channel))


class Refusals:
    """Listener that logs a site's events, and keeps its last refusal for the script's error."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self.last = log, ""

    def __call__(self, event: Event) -> None:
        """Log an event."""
        from secure_fl.cli.join import log_event

        log_event(event, self._log)
        if isinstance(event, Refused):
            self.last = event.why or event.code


class Service:
    """The thread that answers the coordinator, while the script runs in its own."""

    def __init__(
        self, party: Party, hospital: HospitalProcess, script: ScriptHandle, refusals: Refusals
    ) -> None:
        self._party, self._hospital, self._script = party, hospital, script
        self._refusals = refusals
        self._thread = threading.Thread(target=self._serve, name="secure_fl join", daemon=True)

    @contextmanager
    def serving(self, name: str, channel: ThreadChannel) -> Iterator[ScriptCohort]:
        """Give the script its cohort; at the end of the block, wait for the end of the run."""
        self._thread.start()
        exited: SystemExit | None = None
        try:
            cohort = ScriptCohort(name, channel)
            try:
                yield cohort
            except SystemExit as error:
                if error.code:
                    raise
                exited = error
            cohort.close()
            self._thread.join()
            if not self._hospital.done:
                raise self._stopped()
        except (Exception, SystemExit) as error:
            ended = CohortError("the script exited with an error status", party=name)
            sent = ended if isinstance(error, SystemExit) else error
            channel.send(LastMessage(error=sent))
            if not self._script.abandoned:
                self._thread.join(GRACE)
            raise
        finally:
            self._party.stop()
        if exited is not None:
            raise exited

    def _serve(self) -> None:
        try:
            self._party.serve(self._hospital.step)
        finally:
            self._script.end(self._stopped())

    def _stopped(self) -> CohortError:
        reason = f": {self._refusals.last}" if self._refusals.last else ""
        return CohortError(
            f"the coordinator ended the run before this script{reason}",
            fix="ask the coordinator; a new start of both continues after the last saved round",
        )


def _silo(script: ScriptHandle, running: RunningFile, me: Member, plan: Plan) -> Silo:
    """Return this site's silo, which has the script instead of records."""
    if isinstance(plan.algorithm, Script):
        _require_same_script(plan.algorithm.sha256, running, me.name)
    else:
        raise DataError(
            f"the plan is for {plan.algorithm.name}, and this site runs a script",
            fix="join this run with `secure-fl join`",
            party=me.name,
            field="algorithm.name",
        )
    return Silo(me.name, (), tier=me.tier, table=script)


def running_file() -> RunningFile:
    """Return the program's file, as it is now: a later one is not the code that runs."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        return RunningFile(file, "no file")
    return RunningFile(file, hashlib.sha256(Path(file).read_bytes()).hexdigest())


def _require_same_script(planned: str | None, running: RunningFile, me: str) -> None:
    """Refuse to run another script than the plan names."""
    file, found = running
    if planned not in (None, found):
        raise DataError(
            f"the plan is for a script with the SHA-256 {str(planned)[:16]}..., and this one has "
            f"{found[:16]}",
            fix="run the script that all hospitals approved, or agree on a new plan",
            party=me,
            file=file,
            field="algorithm.sha256",
        )


@contextmanager
def _shown(log: logging.Logger) -> Iterator[None]:
    """Print the log on stderr, unless the program handles logs itself."""
    if log.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), log.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
