"""All faults, by where they come from."""

from __future__ import annotations

from proof import catalogue_faults, open_world_faults, subtle_faults
from proof.faults import Fault

SOURCES: dict[str, tuple[Fault, ...]] = {
    "the catalogue": catalogue_faults.FAULTS,
    "the open world": open_world_faults.FAULTS,
    "constants off by a part in 10¹⁵": subtle_faults.NUMBERS,
    "terms too small for floats": subtle_faults.TOO_SMALL,
    "not on these numbers": subtle_faults.NOT_ON_THESE_NUMBERS,
    "gradients alone": subtle_faults.GRADIENTS,
}
FAULTS = tuple(fault for faults in SOURCES.values() for fault in faults)
MISPLACED = {
    "keys have no gradient": "all keys' gradients sum to zero, so that a sum that is right leads past the place",
    "the smoothed part has no gradient": "the right side's place is an operation that the other side never needs",
}
"""Faults that are found at another operation or line than the expected one, and why."""
UNSHOWN = {
    "the fill is -9999": "e⁻⁹⁹⁹⁹ is less than 10⁻⁴³⁴²",
    "a fill of -9999.999999999998": "e⁻⁹⁹⁹⁹ is less than 10⁻⁴³⁴²",
}
"""Faults that a field shows and 60 digits don't, so that the verdict is unknown, and why."""
