"""What is handed out: the right name, the same bytes each time, digests that hold, a true list."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from packaging.utils import canonicalize_name

from release import checksums, distribution, lock, provenance, sbom, wheelhouse
from secure_fl.errors import KeyringError, RunError
from tests.support.raising import raises

ROOT = Path(__file__).parent.parent
CHECKOUT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the history")
SAID = ("*.md", "docs/*.md", "examples/*", "Makefile", "cli/*.py", "secure_fl/**/*.py")
BY_NAME = re.compile(r"(?:pip3?|uv|pipx)\s+(?:pip\s+)?install\b[^\n]*", re.I)
NAMES = re.compile(r"(?<![\w./-])(?:secure[-_.]fl|sealed[-_.]federation)(?![\w/-])", re.I)


def installs_by_name(text: str) -> list[str]:
    """Commands that would ask an index for something of our name."""
    found = (one.split("`")[0].split("<-")[0] for one in BY_NAME.findall(text))
    return [one for one in found if NAMES.search(one) and "--no-index" not in one]


@pytest.mark.parametrize(
    ("line", "trap"),
    [
        ("pip install secure-fl", True),
        ('pip install "secure-fl[metrics]"', True),
        ("python -m pip install -U Secure_FL==1.0", True),
        ("uv pip install sealed-federation", True),
        ("pip install --constraint constraints.txt '.[flare]'", False),
        ("pip install --no-index --find-links wheelhouse sealed-federation", False),
        ("`pip install .`, then `secure-fl doctor`", False),
    ],
)
def test_the_rule_sees_what_it_must(line: str, trap: bool) -> None:
    assert bool(installs_by_name(line)) == trap


def test_nothing_that_we_say_installs_by_name() -> None:
    files = [file for pattern in SAID for file in ROOT.glob(pattern) if file.is_file()]
    assert len(files) > 100
    assert {f: t for f in files if (t := installs_by_name(f.read_text(encoding="utf-8")))} == {}


def test_a_strangers_package_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from secure_fl.cli.doctor import _links

    assert _links().status == "ok"
    about = tmp_path / "secure_fl-26.8.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: secure-fl\nVersion: 26.8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _links().status == "problem"


def small_wheel(folder: Path, name: str, *lines: str) -> Path:
    """A wheel that pip takes."""
    folder.mkdir(parents=True, exist_ok=True)
    info, file = f"{name}-1.0.dist-info", folder / f"{name}-1.0-py3-none-any.whl"
    about = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines, ""])
    tag = "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(f"{name}.py", "")
        packed.writestr(f"{info}/METADATA", about)
        packed.writestr(f"{info}/WHEEL", tag)
        packed.writestr(f"{info}/RECORD", "".join(f"{n},,\n" for n in packed.namelist()))
    return file


def test_pip_takes_the_wheels_that_are_listed_and_no_others(tmp_path: Path) -> None:
    listed = wheelhouse.gather(small_wheel(tmp_path / "made", "ours"), tmp_path / "wheels")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--require-hashes", "--quiet"]
    command = [*pip, "--find-links", str(listed.parent), "-r", str(listed), "--target"]
    subprocess.run([*command, str(tmp_path / "taken")], check=True, capture_output=True)
    assert (tmp_path / "taken" / "ours.py").exists()
    small_wheel(listed.parent, "ours", "Summary: changed on its way")
    refused = subprocess.run([*command, str(tmp_path / "not")], capture_output=True, text=True)
    assert refused.returncode and "HASHES" in refused.stderr


UNLOCKED = {"torch", "autograd-gamma"}  # any build; an index without a file for this platform


@pytest.mark.parametrize("file", sorted((ROOT / "locks").glob("*.txt")), ids=lambda file: file.stem)
def test_every_tested_version_has_a_digest(file: Path) -> None:
    rows = [line.split(" ") for line in file.read_text().splitlines() if "#" not in line[:1]]
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", row[1]) for row in rows)
    wanted = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    tested = {canonical(line) for line in wanted if line and not line.startswith("#")}
    assert {canonical(row[0]) for row in rows} == {
        one for one in tested if one.partition("==")[0] not in UNLOCKED
    }


def canonical(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{canonicalize_name(name)}=={version}"


def test_a_wheel_that_an_index_changed_is_refused(tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path, "ours")
    digest, report = wheelhouse.digest(wheel), {"metadata": {"name": "ours", "version": "1.0"}}
    about = {"url": f"file:{wheel}", "archive_info": {"hashes": {"sha256": digest}}}
    locked = tmp_path / "lock.txt"
    locked.write_text("".join(lock.rows({"install": [report | {"download_info": about}]})))
    assert lock.require_locked({wheel: digest}, locked) == 1
    small_wheel(tmp_path, "ours", "Summary: changed on its way")
    with raises(RunError, "ours-1.0", reason="changed"):
        lock.require_locked({wheel: wheelhouse.digest(wheel)}, locked)
    source = {**about, "url": "ours-1.0.tar.gz"}  # its wheel is built here, and has other bytes
    locked.write_text("".join(lock.rows({"install": [report | {"download_info": source}]})))
    assert lock.require_locked({wheel: wheelhouse.digest(wheel)}, locked) == 0


def test_a_bill_of_materials_names_all_and_is_the_same_again(tmp_path: Path) -> None:
    small_wheel(tmp_path, "ours", "Requires-Dist: Theirs>=1", "Requires-Dist: far; extra=='x'")
    small_wheel(tmp_path, "theirs", "License: MIT")
    found = sbom.describe(tmp_path, "ours")
    assert found == sbom.describe(tmp_path, "ours")
    assert found["metadata"]["component"]["name"] == "ours"
    (theirs,) = found["components"]
    assert theirs["licenses"] == [{"license": {"name": "MIT"}}]
    assert theirs["hashes"][0]["content"] == wheelhouse.digest(
        tmp_path / "theirs-1.0-py3-none-any.whl"
    )
    needs = {one["ref"]: one["dependsOn"] for one in found["dependencies"]}
    assert needs["pkg:pypi/ours@1.0"] == ["pkg:pypi/theirs@1.0"]


def new_key() -> bytes:
    """A private key as PEM."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_hospital_can_check_a_release_before_it_installs(tmp_path: Path) -> None:
    release = tmp_path / "dist"
    file = small_wheel(release, "ours")
    checksums.write(release)
    checksums.sign(release, new_key())
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    for tool in ("openssl pkeyutl", "sha256sum --check"):
        (line,) = (one for one in page.splitlines() if one.startswith(tool))
        if shutil.which(tool.split()[0]) is None:
            pytest.skip(f"no {tool.split()[0]} here")
        assert subprocess.run(line.split(), cwd=release, capture_output=True).returncode == 0
        changed = file if tool.startswith("sha256sum") else release / checksums.SUMS
        kept = changed.read_bytes()
        changed.write_bytes(kept.replace(b"1", b"2", 1))
        assert subprocess.run(line.split(), cwd=release, capture_output=True).returncode != 0
        changed.write_bytes(kept)
    with raises(KeyringError, reason="malformed"):
        checksums.sign(release, b"no key")


def test_a_statement_is_refused_with_another_key_or_file(tmp_path: Path) -> None:
    pem = new_key()
    for name in ("a-1.whl", "a-1.tar.gz", "sbom.cdx.json"):
        (tmp_path / name).write_text(f"content of {name}")
    checksums.write(tmp_path)
    public = checksums.sign(tmp_path, pem)
    statement = provenance.write(tmp_path, "c0ffee", pem)

    found = provenance.verify(tmp_path, public)
    assert [s["name"] for s in found["subject"]] == ["a-1.whl", "a-1.tar.gz", checksums.SUMS]
    assert found["predicate"]["buildDefinition"]["externalParameters"] == {"commit": "c0ffee"}
    provenance.require_same_build(found, [tmp_path / "a-1.whl"])

    other = checksums.sign(tmp_path, new_key())
    with raises(KeyringError, "not signed by this key", reason="changed"):
        provenance.verify(tmp_path, other)
    for name in ("a-1.whl", "sbom.cdx.json", checksums.SUMS):  # each file, and their list
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(kept + b" ")
        with raises(KeyringError, name, reason="changed"):
            provenance.verify(tmp_path, public)
        (tmp_path / name).write_bytes(kept)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / checksums.SUMS).write_text("of another")
    with raises(KeyringError, "is in no list of the release", reason="changed"):
        provenance.verify(tmp_path, public)
    (tmp_path / "wheels" / checksums.SUMS).unlink()
    envelope = json.loads(statement.read_text())
    payload = b64decode(envelope["payload"]).replace(b"c0ffee", b"c0ffe0")
    statement.write_text(json.dumps(envelope | {"payload": b64encode(payload).decode()}))
    with raises(KeyringError, "not signed by this key"):
        provenance.verify(tmp_path, public)
    (tmp_path / "a-1.whl").write_text("built from other sources")
    with raises(RunError, "c0ffee", reason="changed"):
        provenance.require_same_build(found, [tmp_path / "a-1.whl"])


def test_a_tar_file_loses_the_traces_of_its_writer(tmp_path: Path) -> None:
    made = []
    for time, user in ((1e9, "ann"), (2e9, "bob")):
        file = tmp_path / f"{user}.tar.gz"
        with tarfile.open(file, "w:gz") as packed:
            about = tarfile.TarInfo("one.txt")
            about.mtime, about.uname = int(time), user
            packed.addfile(about)
        before = file.read_bytes()
        distribution.settle(file, 0)
        assert before != file.read_bytes()
        made.append(file.read_bytes())
    assert made[0] == made[1]


@CHECKOUT
@pytest.mark.slow
def test_two_builds_are_the_same_bytes_and_the_sdist_can_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    first = distribution.build(tmp_path / "one", clone)
    before = os.umask(0o077)
    try:
        monkeypatch.chdir(tmp_path)
        second = distribution.build(Path("two"), clone)  # as `make wheelhouse` says it
    finally:
        os.umask(before)
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    sdist = first[-1]
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    tree = tmp_path / sdist.name.removesuffix(".tar.gz")
    python = own_environment(tmp_path / "venv")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--editable", str(tree)], check=True)
    tests = [f"tests/{name}.py" for name in ("crypto/test_packing", "test_docs", "test_packaging")]
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(run, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def own_environment(folder: Path) -> str:
    """An environment with what is installed here, but for secure_fl itself."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(str(Path(pytest.__file__).parent.parent))
    return str(folder / "bin" / "python")


@pytest.mark.parametrize(
    ("wheels", "device"),
    [
        (["torch-2.13.0+cpu"], "cpu"),
        (["torch-2.13.0"], "cpu"),
        (["torch-2.13.0+cu130"], "gpu"),
        (["torch-2.13.0", "nvidia_cublas-13.1"], "gpu"),
        (["torch-2.13.0", "cuda_bindings-13.0"], "gpu"),
    ],
)
def test_a_wheelhouse_for_the_other_device_is_refused(
    tmp_path: Path, wheels: list[str], device: str
) -> None:
    for name in wheels:
        (tmp_path / f"{name}-py3-none-any.whl").touch()
    wheelhouse.require_device(tmp_path, device)
    (other,) = {*wheelhouse.DEVICES} - {device}
    with raises(RunError, device.upper(), other.upper(), reason="other-program"):
        wheelhouse.require_device(tmp_path, other)
