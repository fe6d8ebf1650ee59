"""Generated examples, on machines that are busy with something else as well."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("clew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("clew")
