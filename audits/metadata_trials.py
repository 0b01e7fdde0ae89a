"""What sizes and times tell the coordinator, tried on a probe federation of eight hospitals."""

from __future__ import annotations

from pathlib import Path

from secure_fl.audits import roles
from secure_fl.audits.attacks import metadata
from secure_fl.audits.controls import probe_settings, recorded
from secure_fl.audits.findings import AuditTrial, CoordinatorView
from secure_fl.audits.priors import prior_of
from secure_fl.config.load import Settings, silos
from secure_fl.errors import SecureFLError

PROBE, PROBE_CONTROL = "probe", "probe-control"


def metadata_trials(settings: Settings, place: Path) -> tuple[AuditTrial, ...]:
    """What sizes and times tell, of a federation of hospitals of many sizes."""
    leaky, own = probe_settings(settings, ranks=True), probe_settings(settings)
    control = recorded(leaky, place / PROBE_CONTROL, until=1)
    prior = prior_of(leaky, tuple(silos(leaky)))
    deployed, reason = CoordinatorView(roles.COORDINATOR), ""
    try:
        deployed = roles.coordinator(recorded(own, place / PROBE, until=1), {}, 0)
    except SecureFLError as error:  # such as tiers that are too small for sums
        reason = f"eight hospitals of many sizes cannot train in this run's way: {error.what}"
    found = []
    for attack in (metadata.sizes, metadata.timing):
        known = attack(roles.coordinator(control, {}, 0), prior)
        measured = attack(deployed, prior)
        if measured.value is None:  # too few hospitals can be told apart: no success of anything
            found.append(AuditTrial(None, measured, None, reason or measured.note))
        else:
            found.append(AuditTrial(known, measured, metadata.null(known, prior)))
    return tuple(found)
