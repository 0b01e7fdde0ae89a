"""NVFLARE with our sum: their training code and transport, and no readable update at the server.

At a site, the filters `SealedTask` and `SealedResult` give trained arrays to the site's service
(`secure-fl serve`). At the server, `SealedServer` coordinates the run. `sealed` adds both to a
recipe.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from secure_fl.errors import SettingsError

SUPPORTED = ("2.9",)


def require_nvflare() -> None:
    """Refuse a missing or untested version of NVFLARE."""
    try:
        found = version("nvflare")
    except PackageNotFoundError:
        raise SettingsError(
            "NVFLARE is not installed",
            fix="from a checkout: pip install --constraint constraints.txt '.[flare]'",
        ) from None
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        raise SettingsError(
            f"NVFLARE {found} is not supported; tested versions are {', '.join(SUPPORTED)}",
            fix="install one of them; nothing was sent",
        )


require_nvflare()

from secure_fl.integrations.nvflare.client import SealedResult, SealedTask  # noqa: E402
from secure_fl.integrations.nvflare.recipe import SealedSimEnv, sealed  # noqa: E402
from secure_fl.integrations.nvflare.server import SealedAggregator, SealedServer  # noqa: E402

__all__ = [
    "SealedAggregator", "SealedResult", "SealedServer", "SealedSimEnv", "SealedTask", "sealed",
]  # fmt: skip
