"""A script at several sites, all in this process."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from secure_fl.config.build import plain
from secure_fl.config.toml import write
from secure_fl.errors import CohortError, RunError, SettingsError
from secure_fl.features.scripts.algorithm import Script, Shape
from secure_fl.features.scripts.cohort import ScriptCohort
from secure_fl.features.scripts.turns import LastMessage, ScriptHandle, TurnChannel, thread_channels
from secure_fl.settings import ProtectionSettings

if TYPE_CHECKING:
    from secure_fl.federation.federation import Federation

Main = Callable[[ScriptCohort], Any]
GRACE = 5.0  # seconds for a process to end
BITS = 16  # of a value in a sum: scripts average whole models, not only small changes


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of a simulation."""

    results: Mapping[str, Any]  # what `main` returned, by site
    document: Mapping[str, Any]  # as in result.json
    plan: str  # [algorithm] of a plan that allows exactly these sums


class RunFolderOptions(TypedDict, total=False):
    """Options of the folder of a simulation."""

    folder: Path | str | None
    """Folder for checkpoints, events and the result. Default: nothing is written."""
    resume: bool
    """Continue the run in the folder after its last checkpoint."""
    record: bool
    """Record each role's view in the folder, for `secure-fl audit`."""


def simulate(
    main: Main,
    sites: int | Sequence[str] = 3,
    *,
    rounds: int = 10,
    values: Mapping[str, Sequence[int]] | None = None,
    protection: ProtectionSettings | Mapping[str, Any] | None = None,
    seed: int = 0,
    processes: bool = False,
    **files: Unpack[RunFolderOptions],
) -> Simulated:
    """Call `main(cohort)` once for each site, over sealed sums; return what it returned.

    The sites take turns. Each has its own random states of Python, NumPy and torch.

    Args:
        main: The script. `cohort.index` and `cohort.name` choose a site's records.
        sites: The number of sites, or their names.
        rounds: The most rounds, as in the plan of a pilot.
        values: Name and shape of everything that may be summed. Default: anything.
        protection: Protection of the sums. Default: encryption and masks, 16 bits for each value.
        seed: Seed of torch's random states.
        processes: Give each site a process, for libraries with a state for each process. A process
            must be able to import `main`.

    Other Args:
        folder (Path): Folder for checkpoints, events and the result. Default: nothing is written.
        resume (bool): Continue the run in the folder after its last checkpoint.
        record (bool): Record each role's view in the folder, for `secure-fl audit`.

    """
    from secure_fl.federation.run_spec import section_of

    names = [f"site-{k + 1}" for k in range(sites)] if isinstance(sites, int) else list(sites)
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise SettingsError(f"the site {twice[0]!r} is named twice", fix="give each site a name")
    shapes: dict[str, Shape] = {}
    begin = ProcessScript if processes else ThreadScript
    scripts = {name: begin(main, name, shapes) for name in names}
    allowed = None if values is None else {n: tuple(shape) for n, shape in values.items()}
    algorithm = Script(rounds=rounds, values=allowed)
    if protection is None or isinstance(protection, Mapping):
        protection = {"bits": BITS, **(protection or {})}
    protected = section_of(ProtectionSettings, protection, "protection")
    run = _federation(scripts, algorithm, protected, seed, files)
    try:
        document = run.run().document
        results = _results(scripts)
    finally:
        for script in scripts.values():
            script.stop()
    used = Script(rounds=rounds, values=allowed or dict(sorted(shapes.items())))
    return Simulated(results, document, write({"algorithm": plain(used)}).lstrip())


def _federation(
    scripts: Mapping[str, ThreadScript | ProcessScript],
    algorithm: Script,
    protection: ProtectionSettings,
    seed: int,
    files: RunFolderOptions,
) -> Federation:
    """Make the federation of a simulation, whose silos have scripts instead of records."""
    import torch

    from secure_fl.data.silo import Silo
    from secure_fl.federation.federation import Federation

    return Federation(
        [Silo(name, (), table=script.handle) for name, script in scripts.items()],
        algorithm,
        protection=protection,
        training={"threads": torch.get_num_threads()},
        seed=seed,
        progress=False,
        **files,
    )


class ThreadScript:
    """A script in a thread, which takes turns with the program of its site."""

    def __init__(self, main: Main, name: str, shapes: dict[str, Shape]) -> None:
        channel, programs_channel = thread_channels()
        self.handle = ScriptHandle(OwnRandomStates(programs_channel), shapes)
        self._thread = threading.Thread(target=run_main, args=(main, name, channel), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the script, wherever it is."""
        self.handle.end(CohortError("the run ended at another site"))
        self._thread.join()


class ProcessScript:
    """A script in a process."""

    def __init__(self, main: Main, name: str, shapes: dict[str, Shape]) -> None:
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        self.handle = ScriptHandle(ProcessChannel(ours), shapes)
        states = random_states()
        arguments = (main, name, theirs, states)
        self._process = spawning.Process(target=_in_process, args=arguments, daemon=True)
        try:
            self._process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise SettingsError(
                f"main cannot be given to a process ({error})",
                fix="define it at the top level of a module, or use threads",
                field="processes",
            ) from error
        theirs.close()

    def stop(self) -> None:
        """End the process."""
        self.handle.end(CohortError("the run ended at another site"))
        self._process.join(GRACE)
        self._process.terminate()
        self._process.join()


class OwnRandomStates:
    """The program's end of a thread: the script has its own random states while it computes.

    Those of torch are swapped by the site.
    """

    def __init__(self, channel: TurnChannel) -> None:
        self._channel, self._own = channel, random_states()
        self._outside = self._own

    def send(self, message: Any) -> None:
        """Give a message to the script, which computes now."""
        self._outside = random_states()
        set_random_states(self._own)
        self._channel.send(message)

    def recv(self) -> Any:
        """Wait until the script has a request."""
        message = self._channel.recv()
        self._own = random_states()
        set_random_states(self._outside)
        return message


class ProcessChannel:
    """One end of a connection between processes.

    It pickles messages itself: torch would share the memory of tensors with a process that ends.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        """Give a message to the other process."""
        self._connection.send_bytes(pickle.dumps(message))

    def recv(self) -> Any:
        """Wait for a message of the other process."""
        try:
            return pickle.loads(self._connection.recv_bytes())  # noqa: S301 - of our own process
        except EOFError:
            return LastMessage(error=CohortError("the process of this site ended unexpectedly"))


def run_main(main: Main, name: str, channel: TurnChannel) -> None:
    """Run a script to its end, and send what it returns or raises."""
    try:
        cohort = ScriptCohort(name, channel)
    except CohortError:
        return  # the run ended before it began
    try:
        result = main(cohort)
    except BaseException as error:
        _close(cohort, error=error)
    else:
        _close(cohort, result)


def _close(cohort: ScriptCohort, result: Any = None, error: BaseException | None = None) -> None:
    """Send the end of a script; in a process, it may be impossible to send."""
    try:
        cohort.close(result, error)
    except (TypeError, AttributeError, pickle.PicklingError) as problem:
        shown = f"{type(error).__name__}: {error}" if error else f"of main: {problem}"
        cohort.close(error=CohortError(f"the result cannot leave its process ({shown})"))


def _in_process(main: Main, name: str, connection: Any, states: tuple[Any, ...]) -> None:
    """Run a script in a process of its own."""
    set_random_states(states)
    run_main(main, name, ProcessChannel(connection))


def random_states() -> tuple[Any, ...]:
    """Return the global random states of Python and NumPy."""
    return random.getstate(), np.random.get_state()


def set_random_states(states: tuple[Any, ...]) -> None:
    """Set the global random states of Python and NumPy."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def _results(scripts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each script returned."""
    found = {
        name: script.handle.next_request()
        for name, script in scripts.items()
        if script.handle.round
    }
    if not found:
        raise RunError(
            "the run in this folder has finished, so no script ran",
            fix="read its result.json, or use another folder",
            reason="exists",
        )
    return {name: ended.result for name, ended in found.items()}
