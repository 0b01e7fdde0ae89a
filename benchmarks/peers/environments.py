"""Installs each system into an environment: `python -m benchmarks.peers.environments FOLDER`.

The error of a failed installation is stored in the environment's folder, and shown in its row.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

TORCH = ("torch==2.13.0", "transformers==5.23.0")
SYSTEMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flwr": ("flwr[simulation]==1.41.0",),  # 1.42 asks for a certifi that is not out yet
        "nvflare": ("nvflare[HE]==2.9.0",),
        # torchvision, which it needs, is built for torch with CUDA alone
        "fedbiomed": ("torch===2.13.0", "fedbiomed[researcher,node]==6.4.1"),
        "pfl": ("pfl[pytorch]==0.6.0",),
    }
)
CARRIERS = ("flwr", "nvflare")  # engines that carry our sums need our package beside them
PACKAGE = Path(__file__).parents[2]
ERROR = "not-installed.txt"


def install(folder: Path) -> None:
    """Install the missing systems."""
    for system, packages in SYSTEMS.items():
        home = folder / system
        if home.exists() and not (home / ERROR).exists():
            continue
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip: list[str | Path] = [home / "bin" / "pip", "install", "--quiet", *asked(packages)]
        pip += ["--editable", PACKAGE] if system in CARRIERS else []
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            (home / ERROR).write_text(done.stderr[-600:])
        print(system, "is not installed" if done.returncode else "is installed")


def asked(packages: tuple[str, ...]) -> list[str]:
    """Add the common packages, unless the system requires other versions of them."""
    named = {package.partition("=")[0] for package in packages}
    return [*(p for p in TORCH if p.partition("=")[0] not in named), *packages]


def missing(folder: Path, system: str) -> str | None:
    """Explain why a system cannot run; None if it can."""
    home = folder / system
    if (home / ERROR).exists():
        return (home / ERROR).read_text()
    if not (home / "bin" / "python").exists():
        return "not installed: python -m benchmarks.peers.environments FOLDER"
    return None


if __name__ == "__main__":
    install(Path(sys.argv[1]))
