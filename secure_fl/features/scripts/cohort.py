"""The cohort of a script: sums over all sites, as plain function calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.sealing.packing import SMALL
from secure_fl.errors import CohortError, DataError, SettingsError
from secure_fl.features.scripts.algorithm import WEIGHT
from secure_fl.features.scripts.turns import (
    Advance,
    AgreeCall,
    LastMessage,
    NextRound,
    RunBegins,
    ScriptRequest,
    SumCall,
    Summed,
    TurnChannel,
    TurnRefused,
)
from secure_fl.party.rounds import Round

Values = Mapping[str, Any]  # name -> tensor, array or number
LEAST_WEIGHT, LEAST_VALUE = 2.0**-16, 2.0**-30  # other than 0: smaller ones lose digits


class ScriptCohort:
    """All sites of a run, as the script of one site sees them.

    Every site makes the same calls in the same order. A call returns when all sites have made it.
    """

    def __init__(self, name: str, channel: TurnChannel) -> None:
        """Wait until the run begins. `channel`: the script's end of the connection."""
        self.name = name
        self._channel, self._over, self._looped = channel, False, False
        first: RunBegins = self._wait()
        self.names, self.settings = first.names, first.settings

    @property
    def index(self) -> int:
        """The position of this site among all sites, from 0."""
        return self.names.index(self.name)

    def mean(self, values: Values, weight: float = 1.0, base: Values | None = None) -> Any:
        """Average values over the sites, weighted by `weight`; nobody sees those of one site.

        Returns the means under the same names, as tensors or arrays like the given ones.

        Args:
            values: Tensors, arrays or numbers by name.
            weight: The weight of this site, such as its number of records: 0, or at least 2^-16.
            base: Values that are equal at all sites, such as the last mean. Only differences to
                them are rounded, which makes the mean of a trained model nearly exact. Differences
                many times larger than in the last round are clipped, and the rest is added to the
                next round's mean.

        """
        weight = _weight(weight)
        arrays = _arrays(values)
        bases = _bases(arrays, base) if base is not None else {}
        exact = {name: _signed(array) for name, array in arrays.items()}
        moved = {n: (a - bases[n] if bases else a) * weight for n, a in exact.items()}
        sent = {**moved, WEIGHT: np.asarray(weight)}
        answer: Summed = self._ask(SumCall(sent, carry=base is not None, weighted=True))
        total = float(answer.sums.get(WEIGHT, np.asarray(answer.sites)))
        if not total > 0:
            raise DataError("the weights of all sites add up to 0", fix="give weights above 0")
        means = {name: answer.sums[name] / total + bases.get(name, 0.0) for name in arrays}
        return {name: _like(values[name], mean) for name, mean in means.items()}

    def sum(self, values: Values) -> Any:
        """Add values over the sites. Returns the sums, as tensors or arrays like the given ones.

        Sums of whole numbers have the type int64, and sums of float16 float32. Up to 8 whole
        numbers of a name are added exactly, and other numbers in units of 2^-40. More than 8 are
        rounded; whole numbers to whole numbers.
        """
        arrays = _arrays(values)
        for name, array in arrays.items():
            _require_units(name, array)
        answer: Summed = self._ask(SumCall(arrays))
        return {name: _like(value, answer.sums[name], whole=True) for name, value in values.items()}

    def agree(self, value: Any, about: str = "a value") -> None:
        """Stop the run unless this value is equal, bit for bit, at all sites.

        It may be bytes, a number, a text, an array, a tensor, or a list or mapping of these.
        """
        self._ask(AgreeCall(digest(value), about))

    def rounds(
        self, shared: Mapping[str, Any] | None = None, own: Mapping[str, Any] | None = None
    ) -> Iterator[Round]:
        """Iterate over the rounds of the plan, and save both states after each.

        A script that starts again continues after the last saved round, with these states. A state
        is a mapping: its items are restored. Items with `load_state_dict`, such as models and
        optimisers, are restored in place.

        Args:
            shared: State that is equal at all sites, such as the model.
            own: State of this site alone, such as an optimiser.

        """
        if self._looped:
            raise SettingsError(
                "this script begins a second loop over rounds; nothing was sent",
                fix="train with one loop or one Trainer.train(), or start a run for each",
                party=self.name,
            )
        self._looped = True
        states = ({} if own is None else own, {} if shared is None else shared)
        while True:
            next_round: NextRound = self._ask(Advance(*map(_state_of, states)))
            for state, restored in zip(states, (next_round.own, next_round.shared), strict=True):
                _restore(state, restored or {})
            if not next_round.number:
                return
            yield Round(next_round.number, next_round.total)

    def close(self, result: Any = None, error: BaseException | None = None) -> None:
        """End this script's part in the run."""
        if not self._over:
            self._channel.send(LastMessage(result, error))
            self._over = True

    def _ask(self, request: ScriptRequest) -> Any:
        if self._over:
            raise CohortError(
                "the run is over, and this call came after its end; nothing was sent",
                fix="make all calls before the script's part ends",
                party=self.name,
            )
        self._channel.send(request)
        return self._wait()

    def _wait(self) -> Any:
        answer = self._channel.recv()
        if isinstance(answer, TurnRefused):
            raise answer.error
        if isinstance(answer, LastMessage):
            self._over = True
            raise answer.error or CohortError("the run ended before this call", party=self.name)
        return answer


def digest(value: Any) -> bytes:
    """Compute a digest of a value, bit for bit."""
    state = sha256()

    def add(part: Any) -> None:
        if isinstance(part, Mapping):
            state.update(f"items {len(part)};".encode())
            for name in sorted(part):
                add(name)
                add(part[name])
        elif isinstance(part, list | tuple):
            state.update(f"list {len(part)};".encode())
            for one in part:
                add(one)
        elif isinstance(part, float):  # NumPy's too, which has another text
            state.update(f"float {float(part).hex()};".encode())
        elif isinstance(part, bytes | str | int | None):
            state.update(f"{type(part).__name__} {part!r};".encode())
        else:
            array = _array("a value", part)
            state.update(f"{array.dtype} {array.shape};".encode() + array.tobytes())

    add(value)
    return state.digest()


def _arrays(values: Values) -> dict[str, NDArray[Any]]:
    given: object = values  # a script may pass anything
    if not isinstance(given, Mapping) or not given:
        raise SettingsError(
            f"found {type(values).__name__} instead of named values",
            fix='give a dictionary: cohort.mean({"weights": array}, weight=records)',
        )
    if other := [name for name in given if not isinstance(name, str)]:
        raise SettingsError(
            f"found {other[0]!r} as a name of values; nothing was sent",
            fix=f'give texts as names, such as "{other[0]}"',
        )
    return {name: _array(name, value) for name, value in values.items()}


def _bases(arrays: Mapping[str, NDArray[Any]], base: Values) -> dict[str, NDArray[Any]]:
    """Copy the base of each value; another shape than the value's is refused."""
    bases = {name: _array(name, base[name]) for name in arrays if name in base}
    for name, array in arrays.items():
        if name not in bases or bases[name].shape != array.shape:
            found = f"has the shape {list(bases[name].shape)}" if name in bases else "is missing"
            raise SettingsError(
                f"the base of {name} {found}, and the value has {list(array.shape)}; "
                "nothing was sent",
                fix="give the base the names and shapes of the values",
            )
    return bases


def _weight(given: Any) -> float:
    """Convert a weight to a number; one that the units of exact sums would round is refused."""
    try:
        weight = float(given)
    except (TypeError, ValueError):
        weight = -1.0
    if not (weight == 0 or LEAST_WEIGHT <= weight < float("inf")):
        raise SettingsError(
            f"found {given!r} as a weight",
            fix="give 0 or a number from 2^-16 on; multiply the weights of all sites by the same "
            "number",
        )
    return weight


def _require_units(name: str, array: NDArray[Any]) -> None:
    """Refuse numbers that an exact sum would round to nothing."""
    largest = np.abs(array).max(initial=0) if array.dtype.kind == "f" else 0
    if array.size <= SMALL and 0 < largest < LEAST_VALUE:
        raise SettingsError(
            f"{name} has only values below 2^-30, and sums of up to {SMALL} values have units of "
            "2^-40; nothing was sent",
            fix="multiply them at all sites by the same number, and divide the sum",
        )


def _array(name: str, value: Any) -> NDArray[Any]:
    """Copy a tensor, array or number; a tensor on a device comes to the CPU."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    array = np.array(value)
    if array.dtype.kind not in "fiub":
        raise SettingsError(
            f"{name} is of the type {type(value).__name__}, which cannot be summed",
            fix="give tensors, arrays or numbers",
        )
    return array


def _signed(array: NDArray[Any]) -> NDArray[Any]:
    """Convert types to float64 whose differences and products do not fit them, such as uint8."""
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _like(value: Any, array: NDArray[np.float64], *, whole: bool = False) -> Any:
    """Convert sums to the kind of the given value: a tensor, an array or a number.

    A sum (`whole`) of small types takes a larger one, which holds it.
    """
    if hasattr(value, "detach"):
        import torch

        floating = value.is_floating_point()
        array = np.rint(array) if whole and not floating else array
        kind = value.dtype if floating else torch.int64 if whole else torch.float32
        kind = torch.float32 if whole and kind.itemsize < 4 else kind
        return torch.tensor(array, dtype=kind, device=value.device)  # a copy: a script changes it
    kind = np.asarray(value).dtype
    if kind.kind in "iub" and whole:
        array, kind = np.rint(array), np.dtype(np.int64)
    elif whole and kind.itemsize < 4:
        kind = np.dtype(np.float32)
    kept = array.astype(kind if kind.kind == "f" or whole else np.float64)
    return kept if isinstance(value, np.ndarray) or kept.ndim else kept.item()


def _state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.state_dict() if hasattr(v, "state_dict") else v for n, v in state.items()}


def _restore(state: Mapping[str, Any], restored: Mapping[str, Any]) -> None:
    """Put restored items into a script's state."""
    for name, value in restored.items():
        if hasattr(state.get(name), "load_state_dict"):
            state[name].load_state_dict(value)
        elif isinstance(state, MutableMapping):
            state[name] = value
        else:
            raise SettingsError(
                f"a state of the type {type(state).__name__} cannot be restored",
                fix="give a dictionary",
            )
