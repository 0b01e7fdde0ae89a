"""A rule of a site that a plan breaks: what was asked, what is allowed, and how that is said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from secure_fl.errors import SecureFLError


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a plan breaks. `site.…` rules are fields of the policy; others always hold."""

    rule: str
    asked: str
    allowed: str
    fix: str

    def __str__(self) -> str:
        return f"{self.rule}: asked for {self.asked}; allowed: {self.allowed} -> {self.fix}"


class PolicyRefusal(SecureFLError):  # noqa: N818 - it says what the site does
    """The policy of this site does not allow what a coordinator asks."""

    code: ClassVar[str] = "policy"
    exit_status: ClassVar[int] = 3

    def __init__(self, broken: Sequence[Violation], **where: object) -> None:
        self.broken = tuple(broken)
        count = f"{len(broken)} rule{'' if len(broken) == 1 else 's'}"
        lines = "".join(f"\n  {found}" for found in self.broken)
        super().__init__(
            f"this site's policy does not allow the run: {count} broken{lines}",
            fix="ask the coordinator for another plan, or ask the person responsible for this "
            "site's records to change its policy file. The coordinator received only `policy`",
            **where,
        )


def at_least(rule: str, asked: float, least: float) -> Iterator[Violation]:
    """Break the rule if less is asked for."""
    if not asked >= least:  # so that NaN is refused
        yield Violation(rule, f"{asked}", f"{least} or more", _set(rule, asked))


def at_most(rule: str, asked: float, most: float) -> Iterator[Violation]:
    """Break the rule if more is asked for."""
    if not asked <= most:
        yield Violation(rule, f"{asked}", f"{most} or less", _set(rule, asked))


def listed(rule: str, asked: str, allowed: Sequence[str]) -> Iterator[Violation]:
    """Break the rule if it is not on the list."""
    if asked not in allowed:
        section, _, name = rule.rpartition(".")
        names = ", ".join(map(shown, allowed)) or "none"
        yield Violation(rule, shown(asked), names, f"add {shown(asked)} to {name} in [{section}]")


def _set(rule: str, value: float) -> str:
    section, _, name = rule.rpartition(".")
    return f"set {name} = {value} in [{section}]" if math.isfinite(value) else "ask for a number"


def shown(text: str, most: int = 60) -> str:
    """Show what a coordinator wrote without letting it speak to the terminal."""
    quoted = json.dumps(text)
    return quoted if len(quoted) <= most else f"{quoted[: most - 3]}..."
