"""Who takes part in a run: some may be lost on the way, nobody is ever added."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.errors import DISTRUST, CohortError, TooFewParties
from secure_fl.protocol.ports import Group, Transcript


class Members:
    """The members of a run as one of them sees them, and how few it goes on with."""

    def __init__(
        self, me: str, host: str | None, min_cohort: int, threshold: int, transcript: Transcript
    ) -> None:
        self.me, self.host, self._transcript = me, host, transcript
        self.min_cohort, self.threshold = min_cohort, threshold
        self.roster: tuple[str, ...] = ()  # all that the run began with, here or lost since
        self.here: tuple[str, ...] = ()

    @property
    def parties(self) -> tuple[str, ...]:
        """All but the host."""
        return tuple(m for m in self.here if m != self.host)

    @property
    def is_host(self) -> bool:
        """Whether this party is the host."""
        return self.me == self.host

    def begin(self, names: tuple[str, ...]) -> None:
        """Take part in a run of these."""
        self.roster = names
        self._replace_members(names)

    def confirm_members(self, names: Sequence[str]) -> None:
        """Go on with these: the coordinator may lose some, never add any."""
        known = set(self.here)
        if self.me not in names or not set(names) <= known or len(set(names)) < len(names):
            raise CohortError(
                "the coordinator goes on with members that this party did not begin with, or "
                "without this party",
                party=self.me,
                fix=DISTRUST,
            )
        self._replace_members(tuple(names))
        if len(self.parties) < self.threshold:
            raise TooFewParties(
                f"only {len(self.parties)} parties are left; the threshold is {self.threshold}",
                fix="bring the others back and resume the run; nothing was sent",
                party=self.me,
            )

    def keep_only(self, survivors: tuple[str, ...]) -> None:
        """Go on with those whose inputs are in a sum, before anything of it is revealed."""
        alive = set(survivors)
        parties = alive - {self.host}
        if not alive <= set(self.here) or len(parties) < self.threshold:
            raise TooFewParties(
                f"only {len(parties)} of {len(self.parties)} parties took part in a sum; "
                f"the threshold is {self.threshold}",
                fix="bring the others back and resume the run; nothing was revealed",
                party=self.me,
            )
        self._replace_members(survivors)

    def _replace_members(self, names: tuple[str, ...]) -> None:
        """Bind later sums to who is here: a party that is told otherwise gives and reads others."""
        self._transcript.saw("\n".join(names).encode(), b"members", host=True)
        self.here = names

    def require_cohort(self, groups: Sequence[Group]) -> None:
        """Refuse a sum over too few: each would learn what the others hold."""
        for group in groups:
            owners = set(group.owners) & set(self.parties)  # the host masks with nobody
            if len(owners) < self.min_cohort:
                first, more = next(iter(group.vectors)), len(group.vectors) - 1
                raise TooFewParties(
                    f"the sum of {first!r}{f' and {more} more' if more else ''} would be over "
                    f"{len(owners)} part{'y' if len(owners) == 1 else 'ies'} "
                    f"({', '.join(sorted(owners))}); min_cohort is {self.min_cohort}",
                    fix="a sum over one hospital IS that hospital: let more parties contribute "
                    "this name, or lower protection.min_cohort knowingly",
                    party=self.me,
                )
