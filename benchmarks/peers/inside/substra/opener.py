"""How SubstraFL reads a site's records: its name, and the arrays of its file."""

from pathlib import Path

import numpy as np
import substratools


class Records(substratools.Opener):
    """One `.npz` file in the sample's folder."""

    def get_data(self, folders):
        """The site, and its records."""
        (file,) = Path(folders[0]).glob("*.npz")
        with np.load(file) as found:
            return {"site": file.stem, "rows": dict(found)}

    def fake_data(self, n_samples=None):
        """Nothing is tried on made-up records."""
        return {"site": "", "rows": {}}
