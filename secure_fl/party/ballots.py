"""Secret ballots in a sum: all learn how many are against, and nobody can vote twice.

A sum alone would take any number for a vote: one member that sends -7 outvotes seven. So there are
two rows of slots, for and against, and each voter puts a 1 into one slot that it draws in secret.
Who adds votes makes them more than the voters; who would take one away has to guess its slot, and
what is not there leaves a number below zero. Either spoils the ballot, which all see.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.party.sum_request import RoundSums, SumRequest
from secure_fl.protocol.ports import Rule

BALLOT = "guard/ballot"
SLOTS = 256  # in a row: to take one given vote away unseen succeeds once in so many tries


class Votes(NamedTuple):
    """What a ballot came to."""

    against: int
    voters: int
    spoiled: bool  # somebody sent what is no vote


def ballot(against: bool) -> NDArray[np.float32]:
    """One vote, in a slot that nobody else can know."""
    paper = np.zeros((2, SLOTS), np.float32)
    paper[int(against), secrets.randbelow(SLOTS)] = 1.0
    return paper


def count(papers: NDArray[np.float64], voters: int) -> Votes:
    """Count the sum of so many ballots."""
    whole = np.rint(papers)
    genuine = np.abs(papers - whole).max() < 0.1 and whole.min() >= 0 and whole.sum() == voters
    return Votes(int(whole[1].clip(0, voters).sum()), voters, spoiled=not genuine)


async def vote(sums: RoundSums, against: bool) -> Votes:
    """Put in one vote, and count all."""
    paper = {BALLOT: ballot(against)}
    opened = await sums.sum(SumRequest(paper, Rule(bound=1.0), ignore_hooks=True))
    return count(opened[BALLOT], len(sums.survivors))
