"""How random histories of a model are made."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def settings_of(examples: int) -> settings:
    """How many histories, each of 25 steps; ``MODEL_EXAMPLES`` of the environment goes before.

    A history that fails is printed with what repeats it. It is shortened only where ``EXPLORE`` is set, for that takes minutes.
    """
    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if os.environ.get("EXPLORE") else ()))
    return settings(
        max_examples=int(os.environ.get("MODEL_EXAMPLES", examples)),
        stateful_step_count=25,
        phases=phases,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
