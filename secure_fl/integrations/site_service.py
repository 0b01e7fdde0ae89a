"""The service of a site whose training runs in another engine.

It is a script of the site (`secure_fl.join`): in each round it waits for the values that the
engine's program trained, and asks the cohort for their mean. Frames and values come through a
socket on this machine, so the program gets neither keys nor rules.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from safetensors.numpy import save_file

from secure_fl.cli.service import PILOT_LOG
from secure_fl.errors import SecureFLError, SettingsError, TrainingError, WireError
from secure_fl.features.scripts.cohort import ScriptCohort, digest
from secure_fl.features.scripts.joining import join
from secure_fl.integrations.site_messages import (
    MOST_TEXT,
    Answer,
    Ask,
    Failure,
    Give,
    Mean,
    Reply,
    Request,
    SiteName,
    Turn,
    Who,
    arrays,
    frame_of,
    read_request,
    receive,
    send,
    vectors,
)
from secure_fl.pilot.hospital import HospitalProcess
from secure_fl.pilot.kits import Kit
from secure_fl.protocol.frames import Frame

LINGER = 10.0  # seconds for the coordinator to ask for the last answer again
LONGEST_PATH = 100  # bytes; the system allows a few more
MEAN, NUMBERS = "mean", "numbers"  # keys of the model and of metrics in the script's state
MODEL = "model.safetensors"
OUTDATED = Failure("outdated", "another frame came in the meantime; nothing was sent")


class SiteSocket:
    """The meeting point of frames, the hospital's process and the script.

    Two threads of the service wait here: `serve` for a frame, and `turn` for values. Each request
    waits in a thread until its frame is answered, or until values are due.
    """

    def __init__(self, hospital: HospitalProcess, path: Path) -> None:
        """Begin to accept requests."""
        self._hospital = hospital
        self._mail = threading.Condition()
        self._todo: Frame | None = None
        self._doing = b""  # heads of frames
        self._done: tuple[bytes, Reply] = (b"", Failure("nothing"))
        self._turn: Turn | None = None
        self._given: Give | None = None
        self._refused: Failure | None = None  # the last values, by the plan
        self._over = False
        self.mean: Mean | None = None  # of the last round, if the plan opens it
        self._end = _listening(path)
        threading.Thread(target=self._accept, name="site socket", daemon=True).start()

    @property
    def run(self) -> str:
        """The name of the run under way."""
        return self._hospital.run

    # --- the service's side -----------------------------------------------------------------------

    def serve(self, step: Callable[[Frame], Frame]) -> None:
        """Answer frames until the run has finished, or `stop`."""
        log = logging.getLogger(PILOT_LOG)
        while (frame := self._next()) is not None:
            try:
                answer = step(frame)
                reply: Reply = Answer(answer.head, answer.bulk)
            except SecureFLError as error:
                log.warning(f"not answered ({error.code}): {error}")
                reply = Failure(error.code, str(error)[:MOST_TEXT])
            with self._mail:
                self._done = frame.head, reply
                self._mail.notify_all()

    def turn(self, turn: Turn) -> Give:
        """Wait for the values of this round."""
        with self._mail:
            self._turn = turn
            self._mail.notify_all()
            self._mail.wait_for(lambda: self._given is not None)
            given, self._given = self._given, None
            assert given is not None  # noqa: S101 - waited for
            return given

    def refuse(self, error: SecureFLError) -> None:
        """Answer the last values with an error: nothing was sent."""
        logging.getLogger(PILOT_LOG).error(str(error))
        with self._mail:
            self._refused = Failure(error.code, str(error)[:MOST_TEXT])

    def stop(self) -> None:
        """End `serve`, and accept nothing more."""
        with self._mail:
            self._over = True
            self._mail.notify_all()
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _next(self) -> Frame | None:
        """Wait for a frame; return None at the end."""
        with self._mail:
            until = None
            while self._todo is None and not self._over:
                if until is None and self._hospital.done:
                    until = time.monotonic() + LINGER
                if until is not None and time.monotonic() >= until:
                    return None
                self._mail.wait(1.0)
            if self._over or self._todo is None:
                return None
            frame, self._todo = self._todo, None
            self._doing = frame.head
            return frame

    # --- the program's side -----------------------------------------------------------------------

    def answer(self, request: Request) -> Reply:
        """Answer one request of the engine's program."""
        if isinstance(request, Who):
            return SiteName(self._hospital.name)
        with self._mail:
            if isinstance(request, Give):
                ask = request.ask
                if self._turn is None:
                    return Failure("not-due", "the run does not wait for values; nothing was sent")
                if not self._is_current(ask):  # its training began in an earlier round or process
                    return OUTDATED
                self._given, self._turn = request, None
                self._mail.notify_all()
            else:
                ask = request
                if ask.head not in (self._done[0], self._doing):
                    self._todo = frame_of(ask)
                    self._mail.notify_all()
            return self._outcome(ask)

    def _outcome(self, ask: Ask) -> Reply:
        """Wait for the answer to a frame, for a turn or for an error."""
        while not self._over:
            if self._refused is not None:
                refused, self._refused = self._refused, None
                return refused
            if self._done[0] == ask.head:
                reply = self._done[1]
                return self._with_mean(reply, ask) if isinstance(reply, Answer) else reply
            if not self._is_current(ask):
                return OUTDATED
            if self._turn is not None and self._given is None:
                return self._with_mean(self._turn, ask)
            self._mail.wait()
        return Failure("over", "the service of this site has ended")

    def _is_current(self, ask: Ask) -> bool:
        """Return True for the frame under way, and for the next one."""
        return ask.head == self._doing or (self._todo is not None and self._todo.head == ask.head)

    def _with_mean(self, reply: Answer | Turn, ask: Ask) -> Reply:
        mean = self.mean
        if mean is not None:
            signature = self._hospital.sign(mean.statement(ask.head))
            mean = replace(mean, vectors=mean.vectors if ask.mean else {}, signature=signature)
        return replace(reply, mean=mean)

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._end.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(end,), daemon=True).start()

    def _handle(self, end: socket.socket) -> None:
        with end, suppress(OSError):
            try:
                reply = self.answer(read_request(receive(end)))
            except SecureFLError as error:
                reply = Failure(error.code, str(error)[:MOST_TEXT])
            send(end, reply)


def serve(
    site: Path | str,
    at: Path | str,
    *,
    kit: Path | str = "kit",
    passphrase_file: Path | str | None = None,
    out: Path | str = "runs",
    goes_back: bool = False,
) -> None:
    """Answer for a site under the rules of its file, until the run has finished.

    Args:
        site: The site's file, as for `secure-fl join`.
        at: Path of the socket, which the engine's program finds in `SECURE_FL_SITE`.
        kit: Folder of the site's kit.
        passphrase_file: File with the passphrase of the keys. Default: it is asked for.
        out: Folder for this site's runs.
        goes_back: Allow repeated rounds after another site lost its state.

    """
    met: list[SiteSocket] = []

    @contextmanager
    def connect(hospital: HospitalProcess, kit: Kit, log: logging.Logger) -> Iterator[SiteSocket]:
        met.append(SiteSocket(hospital, Path(at)))
        log.info(f"{hospital.name} waits at {at}")
        try:
            yield met[0]
        finally:
            met[0].stop()
            Path(at).unlink(missing_ok=True)

    files: dict[str, Any] = {"kit": kit, "passphrase_file": passphrase_file, "out": out}
    with join(site, **files, goes_back=goes_back, connect=connect) as cohort:
        model = average(cohort, met[0])
        save_file(model, Path(out) / met[0].run / MODEL)


def average(cohort: ScriptCohort, place: SiteSocket) -> dict[str, Any]:
    """Average what the engine's program trains in each round; return the last mean."""
    planned, opened = cohort.settings.values or {}, cohort.settings.means_to_coordinator
    state: dict[str, Any] = {}
    for round in cohort.rounds(shared=state):
        if opened and round.number > 1:  # also after a restart
            place.mean = _mean_of(state, round.number - 1)
        from_server, agreed = opened or round.number == 1, b""  # else from this service
        turn = Turn(round.number, tuple(planned), vectors(state.get(MEAN, {})), opened)
        while True:
            given = place.turn(turn)
            try:
                start = arrays(given.start)
                if not from_server:
                    _require_equal(start, state[MEAN])
                sent = digest([start, given.settings])
                if not agreed:
                    cohort.agree(sent, "the model and the settings of the round")
                    agreed = sent
                _require_agreed(sent, agreed)
                values = arrays(given.values)
                base = {name: start.get(name, np.zeros(v.shape)) for name, v in values.items()}
                mean = cohort.mean(values, given.weight, base)
                break
            except (SettingsError, TrainingError, WireError) as error:  # nothing was sent
                place.refuse(error)
        mean = {name: np.asarray(value) for name, value in mean.items()}
        state[MEAN] = {name: value for name, value in mean.items() if name in start}
        state[NUMBERS] = {name: value for name, value in mean.items() if name not in start}
        numbers = ", ".join(f"{name} {float(n):.4g}" for name, n in state[NUMBERS].items())
        logging.getLogger(PILOT_LOG).info(f"means of round {round.number}: {numbers or 'model'}")
        if opened:
            place.mean = _mean_of(state, round.number)
    if opened and place.mean is None and MEAN in state:  # restarted after the last round
        place.mean = _mean_of(state, cohort.settings.rounds)
    model: dict[str, Any] = state.get(MEAN, {})
    return model


def _require_equal(start: Mapping[str, Any], mean: Mapping[str, Any]) -> None:
    """Refuse values whose training began before the last round ended."""
    if digest(start) != digest(mean):
        raise SettingsError(
            "the training started from another model than the last mean; nothing was sent",
            fix="train the model that the round begins with",
        )


def _require_agreed(sent: bytes, agreed: bytes) -> None:
    """Refuse values after other data of the server than those on which all sites agreed."""
    if sent != agreed:
        raise SettingsError(
            "the server sent another model or other settings than before in this round; "
            "nothing was sent",
            fix="send each site the same model and settings, and the same again in a round",
        )


def _mean_of(state: Mapping[str, Any], round: int) -> Mean:
    mean = {**state[MEAN], **state[NUMBERS]}
    return Mean(round, digest(mean), vectors(mean))


def _listening(path: Path) -> socket.socket:
    """Open the socket, for this user alone."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise SettingsError(
            f"the path of the socket is longer than {LONGEST_PATH} characters",
            fix="choose a shorter one, such as /run/secure-fl/site.sock",
        )
    path.unlink(missing_ok=True)
    end, mask = socket.socket(socket.AF_UNIX), os.umask(0o177)
    try:
        end.bind(str(path))
    finally:
        os.umask(mask)
    end.listen()
    return end
