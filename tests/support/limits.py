"""A disk that is full: no file of this process grows beyond a size."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


def limit_files(size: int) -> None:
    """From now on; Python ignores the signal, so a write fails with an error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def lifted_after() -> Iterator[None]:
    """Whatever is limited inside is as before afterwards."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Inside, no file grows beyond this."""
    with lifted_after():
        limit_files(size)
        yield
