"""Why the workspace refuses a rewind: its error classes, explained.

The names are public; causes and ways out are ours, worked out from the preconditions that the vendor documents for this
Beta (preview channel, a setting, one completed update). None of it was run against a real workspace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"\b((?:UNSUPPORTED_REWIND|UNSUPPORTED_REWIND_CONFIGURATION|INVALID_REWIND_SPECIFICATION)(?:\.[A-Z_]+)?)\b"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One class.

    :param cause: what is the matter.
    :param way_out: what to do.
    """

    cause: str
    way_out: str


REFUSALS = {
    "UNSUPPORTED_REWIND.CHECKPOINT_NOT_UPGRADED": Refusal(
        "a flow's checkpoint was written before rewinding was enabled and holds no rewind points",
        "run one update to the end with rewinding enabled, for every flow; only times after it can be rewound to",
    ),
    "UNSUPPORTED_REWIND.DBR_VERSION_TOO_LOW": Refusal(
        "the pipeline's runtime is too old for rewinding",
        "set the pipeline's channel to PREVIEW, run one update to the end, then rewind",
    ),
    "UNSUPPORTED_REWIND.FEATURE_FLAG_DISABLED": Refusal(
        "rewinding is not enabled in this workspace",
        "ask an administrator of the workspace to enable the preview; until then reset the flow with a starting position",
    ),
    "UNSUPPORTED_REWIND.NOT_ENABLED_FOR_PIPELINE": Refusal(
        "the pipeline's configuration does not enable rewinding",
        "set pipelines.rewind.betaEnabled to true in its configuration, run one update to the end, then rewind",
    ),
    "UNSUPPORTED_REWIND_CONFIGURATION.RESERVED_STREAMING_CONF": Refusal(
        "the pipeline sets a streaming configuration that rewinding keeps for itself",
        "remove the setting that the message names from the pipeline's configuration and code",
    ),
    "UNSUPPORTED_REWIND_CONFIGURATION.REWIND_NOT_ENABLED": Refusal(
        "rewinding is used by a pipeline that does not enable it",
        "set pipelines.rewind.betaEnabled to true in its configuration",
    ),
    "UNSUPPORTED_REWIND": Refusal(
        "a flow, source or mode cannot be rewound: streaming tables and AUTO CDC from Delta, streaming tables, Kafka and Auto "
        "Loader can, real-time mode cannot",
        "leave its dataset out, or reset its flow with a starting position",
    ),
    "UNSUPPORTED_REWIND_CONFIGURATION": Refusal(
        "the pipeline's configuration stands against a rewind", "change the setting that the message names"
    ),
    "INVALID_REWIND_SPECIFICATION": Refusal(
        "the request makes no sense to the workspace: a time outside of the kept rewind points, or a dataset that does not exist",
        "choose a time within the last seven days, and datasets of this pipeline",
    ),
}


def explain_refusal(text: str) -> str | None:
    """Return name, cause and way out of the refusal in an error's text; ``None`` where it has none."""
    found = _NAME.search(text)
    if not found:
        return None
    name = found[1]
    known = REFUSALS.get(name) or REFUSALS[name.partition(".")[0]]
    return f"{name}: {known.cause}\nHINT: {known.way_out}"
