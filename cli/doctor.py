"""`secure-fl doctor`: checks of this installation, with fixes."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Literal

import click

from secure_fl.cli.options import json_option

Status = Literal["ok", "note", "problem"]

# Versions in our tests (constraints.txt) of the packages that affect results.
TESTED: Mapping[str, str] = MappingProxyType(
    {
        "torch": "2.13.0", "transformers": "5.23.0", "tenseal": "0.3.18", "opacus": "1.6.0",
        "cryptography": "50.0.2", "tokenizers": "0.23.3", "safetensors": "0.8.0",
        "datasets": "5.2.0", "numpy": "2.4.6", "pydantic": "2.14.3",
    }
)  # fmt: skip
FOREIGN = "secure-fl"  # another project's distribution, which also installs a secure_fl
LINKED = ("crypto", "algorithms", "audits", "cli")
MARGIN = 23  # columns of a check's status and name
FREE_DISK = 2 << 30  # bytes that checkpoints of a small model can need
COLOURS: Mapping[str, str] = MappingProxyType({"ok": "green", "note": "yellow", "problem": "red"})


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check, with a fix if there is a problem."""

    name: str
    status: Status
    found: str
    fix: str = ""


@click.command(
    epilog="""\b
Examples:
  secure-fl doctor
  secure-fl doctor --json > report.json
      for a bug report
  secure-fl doctor --kit kit
      also check a pilot's kit and its last day

The exit status is 0 if there is no problem, else 1."""
)
@json_option
@click.option("--kit", type=click.Path(path_type=Path), help="Also check a pilot's kit.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, kit: Path | None) -> None:
    """Check versions, devices, encryption, disk and the installation itself."""
    from secure_fl.cli import show

    checks = list(examine())
    if kit is not None:
        checks += check_kit(kit)
    if as_json:
        healthy = _healthy(checks)
        show.print_json({"healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        healthy = show_checks(checks)
    ctx.exit(0 if healthy else 1)


def show_checks(checks: Sequence[Check]) -> bool:
    """Print checks; return True if there is no problem."""
    from secure_fl.cli import show

    console = show.out()
    for check in checks:
        fold = partial(wrap, width=console.width - MARGIN, break_on_hyphens=False,
                       break_long_words=False)  # fmt: skip
        lines = fold(check.found) or [""]
        if check.fix:
            lines += fold(f"-> {check.fix}", subsequent_indent="   ")
        console.print(f"{check.status:<8}", style=COLOURS[check.status], end="")
        console.print(f"{check.name:<14} {lines[0]}", soft_wrap=True)
        for line in lines[1:]:
            console.print(f"{'':<{MARGIN}}{line}", soft_wrap=True)
    verdict = "everything works" if _healthy(checks) else "solve the problems above first"
    console.print(verdict, style="bold")
    return _healthy(checks)


def _healthy(checks: Sequence[Check]) -> bool:
    return all(check.status != "problem" for check in checks)


def examine() -> Iterator[Check]:
    """Make all checks; none of them changes anything."""
    yield _python()
    yield from map(_package, TESTED)
    yield from _machine()
    for name, probe in PROBES.items():
        try:
            yield probe()
        except Exception as error:  # any failure is a result
            what = f"{type(error).__name__}: {error}"
            yield Check(name, "problem", what, "reinstall: make clean, then make test")


def _python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", "ok", text)


def _package(name: str) -> Check:
    tested = TESTED[name]
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Check(name, "problem", "missing", f"pip install {name}=={tested}")
    if installed.split("+")[0] == tested:
        return Check(name, "ok", installed)
    fix = f"tested with {tested}; if results differ, pip install {name}=={tested}"
    return Check(name, "note", installed, fix)


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("processor", "ok", f"{cores} cores")
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        small = memory < 4 << 30
        fix = "a federation in one process holds every hospital's model: use small models"
        yield Check(
            "memory", "note" if small else "ok", f"{memory / 2**30:.1f} GiB", fix if small else ""
        )
    except (ValueError, OSError):
        yield Check("memory", "note", "this system does not report it")


def check_disk(here: Path | None = None) -> Check:
    """Check free space and write access in a folder, by default the current one."""
    here = here or Path.cwd()
    free = shutil.disk_usage(here).free
    text = f"{free / 2**30:.1f} GiB free in {here}"
    if not os.access(here, os.W_OK):
        return Check("disk", "note", f"{here} is read-only", "use a writable folder, or --out")
    if free < FREE_DISK:
        return Check("disk", "problem", text, "free some space, or choose another folder by --out")
    return Check("disk", "ok", text)


def _links() -> Check:
    try:
        foreign = version(FOREIGN)
    except PackageNotFoundError:
        pass
    else:
        what = f"{FOREIGN} {foreign} is also installed; its files overwrite ours"
        fix = "create a new venv, and install from a checkout or a release (docs/installation.md)"
        return Check("installation", "problem", what, fix)
    missing = [name for name in LINKED if find_spec(f"secure_fl.{name}") is None]
    if not missing:
        return Check("installation", "ok", f"secure_fl with {', '.join(LINKED)}")
    fix = (
        "in a checkout: git config core.symlinks true, then git checkout -- secure_fl; "
        "else reinstall"
    )
    return Check("installation", "problem", f"secure_fl lacks {', '.join(missing)}", fix)


def _devices() -> Check:
    import torch

    devices = [f"cpu with {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        devices += [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    a = torch.ones(8, 8, requires_grad=True)
    (a @ a).sum().backward()  # type: ignore[no-untyped-call]
    return Check("devices", "ok", ", ".join(devices))


def _encryption() -> Check:
    from secure_fl.crypto.sealing.secret import generate, rehearse

    started = time.perf_counter()
    bits = rehearse(generate(), 3)
    seconds = time.perf_counter() - started
    text = f"an encrypted sum opens correctly, {bits} spare bits, {seconds:.1f} s"
    return Check("encryption", "ok", text)


def _training() -> Check:
    from secure_fl.learning.builtin import tiny_tokenizer

    words = len(tiny_tokenizer())
    return Check("built-in model", "ok", f"its tokenizer has {words} entries; no download needed")


def check_kit(folder: Path) -> Iterator[Check]:
    """Check a pilot's kit: its machine and its last day."""
    from secure_fl.engines.flare.diagnosis import congestion, slowed_by_loss
    from secure_fl.errors import SecureFLError
    from secure_fl.pilot.kits import load_kit

    try:
        kit = load_kit(folder)
    except SecureFLError as error:
        yield Check("kit", "problem", error.what, error.fix)
        return
    until = min(kit.ends().values())
    yield Check("kit", "ok", f"for {kit.connection.name}, valid until {until:%Y-%m-%d}")
    for warning in kit.warnings():
        what, fix = warning.split(": ", 1)
        yield Check("kit", "note", what, fix)
    if slowed_by_loss():
        what = f"TCP slows down at each lost packet ({congestion()})"
        fix = "for lossy networks: deploy/secure-fl.sysctl.conf, here and at the coordinator"
        yield Check("congestion", "note", what, fix)


PROBES: Mapping[str, Callable[[], Check]] = MappingProxyType(
    {
        "disk": check_disk,
        "installation": _links,
        "devices": _devices,
        "encryption": _encryption,
        "built-in model": _training,
    }
)
