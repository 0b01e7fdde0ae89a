"""Made-up tables of hospitals, to ask about."""

from __future__ import annotations

import numpy as np
import pandas as pd


def hospital(seed: int, size: int = 60) -> pd.DataFrame:
    """Notes, classes with a rare one, ages, days, and times to an event."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "text": [f"note {n} of hospital {seed} with word{n % 7}" for n in range(size)],
            "label": rng.choice(["a", "b", "c"], size, p=[0.6, 0.37, 0.03]),
            "sex": rng.choice(["f", "m"], size),
            "age": rng.integers(0, 100, size),
            "seen": pd.date_range(f"2025-0{seed % 9 + 1}-01", periods=size).astype(str),
            "days": rng.integers(0, 40, size),
            "died": rng.integers(0, 2, size),
        }
    )


def hospitals(count: int = 3, size: int = 60) -> dict[str, pd.DataFrame]:
    """Several, each of its own."""
    return {f"hospital-{k + 1}": hospital(k, size) for k in range(count)}
