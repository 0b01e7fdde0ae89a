"""Export as a feature of runs: a finished run gets the cards of its models."""

from __future__ import annotations

from pathlib import Path

from secure_fl.federation.run_feature import RunFeature


class ExportFeature(RunFeature):
    """The cards of a finished run."""

    def finish(self, folder: Path) -> None:
        """Write the card of each model."""
        from secure_fl.features.export.model_card import write_cards

        write_cards(folder)


EXPORT = ExportFeature()
