"""The differential-privacy statements of a run, in the words of NIST SP 800-226."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secure_fl.audits.document import PrivacyPart

LOCAL = (
    "each hospital adds the noise itself, before anything leaves it: nobody else need be trusted "
    "with its records"
)
DISTRIBUTED = (
    "each hospital adds a share of the noise before its values are masked: nobody ever holds an "
    "un-noised sum, and as many hospitals as are named below may tell the host their shares"
)


def statements(result: Mapping[str, Any]) -> tuple[PrivacyPart, ...]:
    """What is promised to whom; empty: differential privacy promises nothing in this run."""
    found = []
    if dp := result.get("privacy"):
        parties = dp.get("epsilon", {})
        found.append(
            PrivacyPart(
                unit=dp["unit"],
                adjacency=dp["adjacency"],
                trust_model=LOCAL,
                mechanism=f"DP-SGD ({dp['clipping']} clipping at {dp['max_grad_norm']:g}), "
                f"composed by {dp['accountant'].upper()}",
                epsilon=dp["overall_epsilon"],
                delta=dp["delta"],
                budget=dp["budget"],
                assumptions=(dp["assumes"],),
                facts={"epsilon of each hospital": parties, "not covered": dp["uncovered"]},
            )
        )
    if noise := result.get("noise"):
        facts = ("epsilon_of_this_run", "releases", "std_guaranteed", "std_all_present", "signal",
                 "signal_to_noise", "drowned", "dropouts", "colluders", "durable")  # fmt: skip
        found.append(
            PrivacyPart(
                unit=noise["unit"],
                adjacency=noise["adjacency"],
                trust_model=DISTRIBUTED,
                mechanism=f"{noise['mechanism']} noise on sums of predictions",
                epsilon=noise["epsilon"],
                delta=noise["delta"],
                budget=noise["budget"],
                assumptions=(noise["assumes"],),
                facts={name.replace("_", " "): noise.get(name) for name in facts},
            )
        )
    return tuple(found)
