"""What is installed: the right modules, under the right names, and quickly imported."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from posixpath import dirname, normpath

import pytest

import secure_fl
from secure_fl.cli.docs import SITE

ROOT = Path(__file__).parent.parent
MAPPED = ("crypto", "algorithms", "audits", "cli")
CHECKOUT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")


def modules_of_the_tree() -> set[str]:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "secure_fl").rglob("*.py")
        if path.relative_to(ROOT / "secure_fl").parts[0] not in MAPPED
    }
    for folder in MAPPED:
        for path in (ROOT / folder).rglob("*.py"):
            found.add(f"secure_fl/{path.relative_to(ROOT).as_posix()}")
    return found


@CHECKOUT
def test_links_show_the_mapped_folders() -> None:
    for folder in MAPPED:
        link = ROOT / "secure_fl" / folder
        assert link.is_symlink() and link.resolve() == ROOT / folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "source"
    subprocess.run(
        ["git", "-C", str(ROOT), "checkout-index", "--all", f"--prefix={sources}/"], check=True
    )
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(sources)], check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@CHECKOUT
def test_the_wheel_holds_exactly_the_tree(wheel: zipfile.ZipFile) -> None:
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True
    ).stdout.split()
    committed = {f for f in modules_of_the_tree() if f in tracked or f[10:] in tracked}
    documents = "/share/doc/"  # an example is a page
    packed = {name for name in wheel.namelist() if name.endswith(".py") and documents not in name}
    assert packed == committed
    assert {"secure_fl/py.typed", "secure_fl/display/style.css"} <= set(wheel.namelist())


@CHECKOUT
def test_the_wheel_holds_no_benchmark(wheel: zipfile.ZipFile) -> None:
    packed = [name for name in wheel.namelist() if name.endswith(".py")]
    assert not [name for name in packed if "benchmarks" in name]


@CHECKOUT
def test_nothing_installs_under_a_common_name(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {t for t in tops if not t.endswith((".dist-info", ".data"))} == {"secure_fl"}


@CHECKOUT
def test_the_pages_are_in_the_wheel_and_links_between_them_hold(wheel: zipfile.ZipFile) -> None:
    share = "sealed_federation-0.1.0.data/data/share/doc/secure_fl/"
    pages = {name.removeprefix(share) for name in wheel.namelist() if name.startswith(share)}
    assert {"README.md", "docs/pilot.md", "docs/images/sum.svg", "constraints.txt"} <= pages
    assert not [page for page in pages if page.endswith((".jsonl", ".json"))]
    generated = {f"docs/{name}" for name in SITE}  # by `secure-fl docs`
    for page in (name for name in pages if name.endswith(".md")):
        for link in re.findall(r"\]\(((?:\.\./)?(?:docs|examples)/[^)#:]+|[a-z-]+\.md)[)#]",
                               wheel.read(share + page).decode()):  # fmt: skip
            target = normpath(f"{dirname(page)}/{link}").lstrip("/")
            assert target in pages | generated, (page, link)


def test_public_names() -> None:
    assert secure_fl.__all__ == sorted(secure_fl.__all__)
    for name in secure_fl.__all__:
        assert getattr(secure_fl, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        secure_fl.Nonsense  # noqa: B018


def test_import_is_light() -> None:
    code = "import secure_fl, sys; print({'torch', 'tenseal', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
