"""Secret ballots in a sum: all parties learn the number of votes, and no party can vote twice.

A plain sum of votes would accept any number as a vote: a member that sends -7 outvotes seven. So a
ballot has two rows of slots, for and against, and each voter puts a 1 into one slot that it draws
secretly. A member that adds votes makes their number larger than the number of voters. A member
that removes a vote must guess its slot; a wrong guess leaves a number below zero. Both spoil the
ballot, and every party sees it.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.party.sum_request import RoundSums, SumRequest
from secure_fl.protocol.ports import Rule

BALLOT = "guard/ballot"
SLOTS = 256  # in a row: one attempt in 256 removes a given vote unnoticed


class Votes(NamedTuple):
    """The result of a ballot."""

    against: int
    voters: int
    spoiled: bool  # a member sent something that is not a vote


def ballot(against: bool) -> NDArray[np.float32]:
    """Make one vote, in a slot that only this party knows."""
    paper = np.zeros((2, SLOTS), np.float32)
    paper[int(against), secrets.randbelow(SLOTS)] = 1.0
    return paper


def count(papers: NDArray[np.float64], voters: int) -> Votes:
    """Count the votes in the sum of so many ballots."""
    whole = np.rint(papers)
    genuine = np.abs(papers - whole).max() < 0.1 and whole.min() >= 0 and whole.sum() == voters
    return Votes(int(whole[1].clip(0, voters).sum()), voters, spoiled=not genuine)


async def vote(sums: RoundSums, against: bool) -> Votes:
    """Cast this party's vote, and count the votes of all."""
    paper = {BALLOT: ballot(against)}
    opened = await sums.sum(SumRequest(paper, Rule(bound=1.0), ignore_hooks=True))
    return count(opened[BALLOT], len(sums.survivors))
