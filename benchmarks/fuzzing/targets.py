"""The table of all targets, the most exposed first."""

from __future__ import annotations

from benchmarks.fuzzing.file_targets import FILES
from benchmarks.fuzzing.wire_targets import WIRE

TARGETS = {**WIRE, **FILES}
