"""How many examples Hypothesis generates: all of them, or a quarter with `--hypothesis-profile=few`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def register_profiles() -> None:
    """Register the profiles `all` and `few`, and load the first."""
    # How long an example takes says more about the machine than about the code.
    settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
    settings.register_profile("few", settings.get_profile("all"), max_examples=25)
    settings.load_profile("all")


def examples(count: int) -> settings:
    """Generate `count` examples, and a quarter of them with the profile `few`. Without it a test has 100."""
    return settings(max_examples=count * settings().max_examples // 100)
