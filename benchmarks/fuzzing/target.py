"""A decoder under test: its input, its promise, and the outcome of one attempt."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from secure_fl.errors import SecureFLError

SLOWEST = 2.0  # CPU seconds that an input may cost
LONGEST = 20.0  # CPU seconds after which a decoder is interrupted
PRODUCT = "secure_fl"
Form = Literal["bytes", "msgpack", "json"]  # of an input; it decides how inputs are mutated


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A decoder; for any bytes it must return, or raise a `SecureFLError` that names a fix."""

    decode: Callable[[bytes], Any]
    seeds: Callable[[], Mapping[str, bytes]]  # genuine inputs, by name
    form: Form = "bytes"


class Attempt(NamedTuple):
    """The outcome of one input."""

    outcome: str  # "accepted", or the error's code and field or reason
    finding: str  # "": the promise is kept
    seconds: float  # CPU time


class NotCanonicalError(Exception):
    """An accepted input is encoded again as another value."""


class HangError(Exception):
    """A decoder does not end."""


def _interrupt(signal: int, frame: object) -> None:
    raise HangError(f"no end after {LONGEST:g} s of CPU")


def attempt(target: FuzzTarget, data: bytes) -> Attempt:
    """Decode one input, and describe how the decoder breaks its promise."""
    began = time.thread_time()
    outcome = finding = ""
    signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        target.decode(data)
        outcome = "accepted"
    except SecureFLError as error:
        outcome = f"{error.code}:{error.reason or error.where.get('field', '')}"
        if not error.what or not error.fix:
            finding = f"{type(error).__name__} does not say what to do"
    except (Exception, RecursionError) as error:  # the finding that fuzzing looks for
        outcome = type(error).__name__
        finding = f"{outcome}: {str(error)[:120]} ({_place(error)})"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.thread_time() - began
    if not finding and seconds > SLOWEST:
        finding = f"{outcome} after {seconds:.1f} s of CPU"
    return Attempt(outcome, finding, seconds)


def _place(error: BaseException) -> str:
    """Return the last line of the product in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"/{PRODUCT}/" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}"


def same(again: object, before: object) -> None:
    """Require that an encoded value decodes to itself."""
    if again != before:
        raise NotCanonicalError(f"{str(before)[:60]} became {str(again)[:60]}")
