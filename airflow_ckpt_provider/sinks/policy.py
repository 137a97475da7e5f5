"""What is done about rows of a sink beyond the batch that a stream is rewound to."""

from __future__ import annotations

from enum import StrEnum


class SinkPolicy(StrEnum):
    """What is done about rows that the sink has beyond the target batch; chosen by a person."""

    #: The sink is rolled back too.
    ROLLBACK = "rollback"
    #: The sink stays; the checkpoint goes to the batch where the sink is.
    FORWARD = "forward"
    #: The sink stays and the checkpoint is rewound: what the verdict says will happen is accepted.
    ACCEPT = "accept"


def policy_word(policy: SinkPolicy) -> str:
    """The word by which people choose a policy."""
    return "keep" if policy is SinkPolicy.ACCEPT else policy.value
