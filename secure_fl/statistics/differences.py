"""No differences: nothing that can be computed from all answers may be about too few patients.

Answers tell the sizes of blocks of records. What follows from them are sums and differences of
blocks: functions of atoms. One that is 0 but on atoms of too few patients tells about those few.

A new answer adds f(new block) to some F(old atom). Where both cancel, f = -F: think of new blocks
and old atoms as vertices of a graph, and of atoms as its edges. Then a sum that differs from 0 on
few edges alone is a cut of few patients, and the smallest cuts are maximal flows. Where f is
constant on all that hangs together, the sum is one of the old answers, which were looked at before,
or else of unions that are new. Cuts allow any F, and F is a sum of answers; so what looks like
telling of few is looked at once more, by linear algebra. Both err to the safe side.

Exact inference from inequalities (no count is below 0) is not looked at: rounding is against that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, maximum_flow

from secure_fl.statistics.atoms import Atoms

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TOLERANCE = 1e-7
MOST_VECTORS = 500  # that are looked at; more are refused


def spans(rows: NDArray[np.int8], vector: NDArray[np.bool_]) -> bool:
    """Check if a vector is a linear combination of these rows."""
    if not len(rows):
        return False
    basis, wanted = rows.astype(float), vector.astype(float)
    found, *_ = np.linalg.lstsq(basis.T, wanted, rcond=None)
    return bool(np.abs(found @ basis - wanted).max() < TOLERANCE)


def few_alone(matrix: Floats, sizes: Integers, bar: int) -> bool:
    """Tell if a combination of rows is about fewer patients than `bar`.

    Small columns have fewer. Combinations that vanish on all others are looked at one by one.
    """
    small = sizes < bar
    if not small.any():
        return False
    free = _null(matrix[:, ~small].T)
    rest = _reduced(free.T @ matrix[:, small])
    return any(_few(part, sizes[small], bar) for part in _parts(rest))


def _few(vectors: Floats, sizes: Integers, bar: int) -> bool:
    used = np.flatnonzero(np.abs(vectors).max(0) > TOLERANCE)
    free = len(vectors) - 1
    if comb(used.size, free) > MOST_VECTORS:
        return True
    for zeros in combinations(used.tolist(), free):  # so many may be 0, at least
        mix = _null(vectors[:, zeros].T) if free else np.ones((1, 1))
        vector = mix[:, 0] @ vectors
        if sizes[np.abs(vector) > TOLERANCE].sum() < bar:
            return True
    return False


def _null(matrix: Floats) -> Floats:
    """Return a basis (columns) of the matrix's null space."""
    if not matrix.size:
        return np.eye(matrix.shape[1])
    _, values, right = np.linalg.svd(matrix, full_matrices=True)
    rank = int((values > TOLERANCE * max(1.0, values.max(initial=0))).sum())
    return np.asarray(right[rank:].T)


def _reduced(matrix: Floats) -> Floats:
    """Gauss and Jordan: a basis of the rows, each with a column that no other has."""
    rows, matrix = list[Floats](), matrix.copy()
    while matrix.size and np.abs(matrix).max() > TOLERANCE:
        at, pivot = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
        row = matrix[at] / matrix[at, pivot]
        matrix = matrix - np.outer(matrix[:, pivot], row)
        rows = [*(one - one[pivot] * row for one in rows), row]
    return np.stack(rows) if rows else np.zeros((0, matrix.shape[1]))


def _parts(basis: Floats) -> list[Floats]:
    """Group vectors that share columns; groups are independent."""
    left, parts = list(range(len(basis))), list[Floats]()
    touches = np.abs(basis) > TOLERANCE
    while left:
        part = [left.pop(0)]
        support = touches[part[0]].copy()
        while more := [row for row in left if (touches[row] & support).any()]:
            part += more
            left = [row for row in left if row not in more]
            support |= touches[more].any(0)
        parts.append(basis[part])
    return parts


def tells_of_few(atoms: Atoms, least: int, *, records: int = 1) -> bool:
    """Tell if the last release and all earlier ones together reveal too small a group.

    `records`: how many one patient may have, in as many atoms: then many small atoms are perhaps
    few patients. One atom's patients are counted exactly.
    """
    bar = least * records
    sizes = np.where(atoms.sizes >= least, bar, atoms.sizes)
    if (sizes >= bar).all():
        return False  # whatever an answer is about, it is about one of these
    old = np.concatenate(atoms.members[:-1]) if len(atoms.members) > 1 else None
    old = np.zeros((0, sizes.size), np.int8) if old is None else old
    suspicious = False
    for part in _partitions(atoms.members[-1], atoms.several[-1]):
        suspicious |= _cut(old, part, sizes, bar)
        old = np.concatenate([old, part])
    return suspicious and few_alone(old.astype(float), sizes, bar)


def _partitions(blocks: NDArray[np.int8], several: bool) -> Iterator[NDArray[np.int8]]:
    """A release as partitions: of entities, each is one of records with it and without it."""
    yield from (blocks[k : k + 1] for k in range(len(blocks))) if several else (blocks,)


def _cut(old: NDArray[np.int8], new: NDArray[np.int8], sizes: Integers, bar: int) -> bool:
    """Check if old blocks and a new partition's blocks differ by few patients."""
    _, atom = np.unique(old, axis=1, return_inverse=True)
    atom = atom.reshape(-1) if len(old) else np.zeros(sizes.size, np.int64)
    outside = ~old.any(0) if len(old) else np.ones(sizes.size, bool)
    block = np.where(new.any(0), new.argmax(0) + 1, 0)  # 0: the rest of the records
    vertex = np.where(outside, 0, len(new) + 1 + atom)
    count = len(new) + 2 + int(atom.max(initial=0))
    graph = coo_array((sizes, (block, vertex)), shape=(count, count)).tocsr()
    graph.setdiag(0)
    both = (graph + graph.T).astype(np.int32)
    both.eliminate_zeros()
    _, component = connected_components(both, directed=False)
    _, firm = connected_components(both >= bar, directed=False)  # that no small cut parts
    for one in np.unique(component[: len(new) + 1]):
        alike = np.flatnonzero(component[: len(new) + 1] == one)
        source, *others = alike[np.unique(firm[alike], return_index=True)[1]]
        if any(maximum_flow(both, source, other).flow_value < bar for other in others):
            return True
    return _unions(old, new, component, atom, sizes, bar)


def _unions(
    old: NDArray[np.int8],
    new: NDArray[np.int8],
    component: Integers,
    atom: Integers,
    sizes: Integers,
    bar: int,
) -> bool:
    """Check if new unions of blocks describe few patients."""
    apart = [
        new[component[1 : len(new) + 1] == one].any(0)
        for one in np.unique(component[1 : len(new) + 1])
        if one != component[0]
    ]
    fresh = [union for union in apart if union.any() and not spans(old, union)]
    if not fresh:
        return False
    matrix = np.concatenate([old, np.stack(fresh).astype(np.int8)]).astype(float)
    _, first = np.unique(atom, return_index=True)
    together = np.bincount(atom, weights=sizes).astype(np.int64)
    return few_alone(matrix[:, first], together[together > 0], bar)
