"""The vectors of the wire specification: product and second reader agree on each of them."""

import json
import re
import subprocess
import sys
from base64 import b64decode
from collections import Counter

import pytest

from benchmarks.vectors import product
from benchmarks.vectors.book import outcome
from benchmarks.vectors.command import recorded
from vectors.reader import __main__ as reader
from vectors.reader.kinds import FOLDER

CASES = list(reader.cases(reader.files()))
PRODUCT = product.kinds(b64decode(json.loads((FOLDER / "keys.json").read_text())["cohort"]))
FILES = sorted(file.stem for file in reader.files())


@pytest.mark.parametrize("file", FILES)
def test_the_product_gives_each_result_and_refuses_for_the_stated_reason(file):
    for case in reader.cases([FOLDER / f"{file}.json"]):
        assert outcome(case, PRODUCT) == reader.expected(case), case["name"]


@pytest.mark.parametrize("file", FILES)
def test_the_reader_gives_each_result_and_refuses_for_the_stated_reason(file):
    for case in reader.cases([FOLDER / f"{file}.json"]):
        assert reader.outcome(case) == reader.expected(case), case["name"]


def test_the_reader_shares_no_code_with_the_product():
    check = "import sys, vectors.reader.kinds; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=FOLDER.parent, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "vectors" in loaded
    assert not loaded & {"secure_fl", "benchmarks", "tenseal", "msgspec"}


def test_the_specification_names_every_check_that_refuses_a_vector():
    codes = Counter(case["refused"] for case in CASES if "refused" in case)
    pages = (FOLDER.parent / "docs").glob("protocol*.md")
    named = re.findall(r"`([a-z-]+:[a-z-]+)`", "".join(page.read_text() for page in pages))
    assert codes.total() >= 60
    assert codes.keys() <= set(named)


@pytest.mark.parametrize("file", FILES)
def test_every_case_says_what_it_gives_under_its_own_name(file):
    cases = list(reader.cases([FOLDER / f"{file}.json"]))
    assert len({case["name"] for case in cases}) == len(cases)
    assert all(("result" in case) != ("refused" in case) for case in cases)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_reader_opens_sums_that_were_just_recorded(seed):
    for plan, case in recorded(3, seed):
        assert reader.outcome(case) == {"result": case["result"]}, plan
        assert outcome(case, PRODUCT) == {"result": case["result"]}, plan
