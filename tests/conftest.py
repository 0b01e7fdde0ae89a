"""One thread per test process: small models gain nothing from more, and results stay comparable."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.long_tests import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.support.long_tests import pytest_runtest_protocol as pytest_runtest_protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may wait for a network
# Without bytecode, each of the processes that tests start compiles all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Leave the imported modules out of every later collection of garbage."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def few_pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw no charts of short runs, which take longer than they, except in tests of pages."""
    from secure_fl.display import run_page

    with pytest.MonkeyPatch.context() as patch:
        if not request.node.nodeid.startswith("tests/display/"):
            patch.setattr(run_page, "FEWEST", 30)
        yield


@pytest.fixture(scope="session")
def code_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where transformers keeps code that lies beside models: one place for a whole process."""
    from transformers import dynamic_module_utils

    folder = tmp_path_factory.mktemp("code")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        yield folder
