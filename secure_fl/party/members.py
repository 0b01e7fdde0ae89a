"""The members of a run, as one party sees them."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.errors import DISTRUST, CohortError, TooFewParties
from secure_fl.protocol.ports import Group, TranscriptLayer


class Members:
    """The members of a run as one of them sees them, with the smallest numbers it accepts."""

    def __init__(
        self,
        me: str,
        host: str | None,
        min_cohort: int,
        threshold: int,
        transcript: TranscriptLayer,
    ) -> None:
        self.me, self.host, self._transcript = me, host, transcript
        self.min_cohort, self.threshold = min_cohort, threshold
        self.roster: tuple[str, ...] = ()  # all that began the run, including those lost since
        self.here: tuple[str, ...] = ()
        self.parties: tuple[str, ...] = ()  # all that are here, except the host
        self.is_host = me == host

    def begin(self, names: tuple[str, ...]) -> None:
        """Begin a run of these members."""
        self.roster = names
        self._replace_members(names)

    def confirm_members(self, names: Sequence[str]) -> None:
        """Continue with these members: the coordinator may drop some, but cannot add any."""
        known = set(self.here)
        if self.me not in names or not set(names) <= known or len(set(names)) < len(names):
            raise CohortError(
                "the coordinator continues with members that this party did not begin with, or "
                "without this party",
                party=self.me,
                fix=DISTRUST,
            )
        self._replace_members(tuple(names))
        if len(self.parties) < self.threshold:
            raise TooFewParties(
                f"only {len(self.parties)} parties are left; the threshold is {self.threshold}",
                fix="restart the missing parties and resume the run; nothing was sent",
                party=self.me,
            )

    def keep_only(self, survivors: tuple[str, ...]) -> None:
        """Continue with the members whose inputs are in a sum, before any of it is revealed."""
        alive = set(survivors)
        parties = alive - {self.host}
        if self.me not in alive:
            raise CohortError(
                "the coordinator says that this party is gone", party=self.me, fix=DISTRUST
            )
        if not alive <= set(self.here) or len(parties) < self.threshold:
            raise TooFewParties(
                f"only {len(parties)} of {len(self.parties)} parties took part in a sum; "
                f"the threshold is {self.threshold}; nothing was revealed",
                fix=DISTRUST,  # a coordinator that follows the protocol does not request this sum
                party=self.me,
            )
        self._replace_members(survivors)

    def _replace_members(self, names: tuple[str, ...]) -> None:
        """Set the members, and bind later masks to them: a party with another list opens none."""
        self._transcript.saw("\n".join(names).encode(), b"members", host=True)
        self.here, self.parties = names, tuple(m for m in names if m != self.host)

    def require_cohort(self, groups: Sequence[Group]) -> None:
        """Refuse a sum over too few parties: each could compute the values of the others."""
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
