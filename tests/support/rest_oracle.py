"""The rule of silence as docs/design.md states it, applied to the JSON of a checkpoint's two logs.

It uses nothing of the package, so that a mistake there cannot hide itself.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import median

#: Why silence proves nothing: a part of the message that says so.
NO_BATCH, FEW, NO_TIMES = "no batch is logged yet", "has the times of only", "as in continuous mode"
BACKWARDS, UNEVEN, SHORT = (
    "go backwards",
    "the stream pauses at times: up to",
    "does not show whether the stream pauses",
)
GAPS, UNDER_WAY = "numbers are missing", "its newest batch is logged and not committed"

#: ``minBatchesToRetain`` of most queries in resting_queries.py, and the one more that Spark keeps.
KEPT = 5 + 1


def logged(checkpoint: Path, log: str) -> list[int]:
    """The batches in one of the logs, in order."""
    return sorted(int(path.name) for path in checkpoint.glob(f"{log}/*") if path.name.isdigit())


def times(checkpoint: Path) -> list[int | None]:
    """When the batches in the offset log were triggered, in milliseconds; ``None`` in continuous mode."""
    heads = [(checkpoint / f"offsets/{batch}").read_text().splitlines()[1] for batch in logged(checkpoint, "offsets")]
    return [json.loads(head)["batchTimestampMs"] if head else None for head in heads]


def set_times(checkpoint: Path, moments: list[int]) -> None:
    """Write other times into the offset log of a stopped query; all else stays as Spark wrote it."""
    for batch, moment in zip(logged(checkpoint, "offsets"), moments, strict=True):
        path = checkpoint / f"offsets/{batch}"
        version, head, *sources = path.read_text().splitlines()
        head = json.dumps(json.loads(head) | {"batchTimestampMs": moment}, separators=(",", ":"))
        path.write_text("\n".join([version, head, *sources]))
        (path.parent / f".{batch}.crc").unlink(missing_ok=True)  # Hadoop reads a file without one


def is_purged(checkpoint: Path) -> bool:
    """Whether Spark has removed the old entries, which it does after it logs a batch: until the next batch nothing changes."""
    offsets, commits = logged(checkpoint, "offsets"), logged(checkpoint, "commits")
    oldest = max(0, offsets[-1] + 1 - KEPT)
    return offsets[0] == commits[0] == oldest


def obstacles(checkpoint: Path, *, history: float) -> set[str]:
    """Every reason why silence proves nothing; none: it does.

    :param history: seconds that the offset log must reach back.
    """
    offsets, moments = logged(checkpoint, "offsets"), times(checkpoint)
    if not offsets:
        return {NO_BATCH}
    known = [moment for moment in moments if moment is not None]
    if len(known) < len(moments):
        return {NO_TIMES}
    pauses = [after - before for before, after in pairwise(known)]
    found = {
        GAPS: offsets != list(range(offsets[0], offsets[-1] + 1)),
        FEW: len(pauses) < 4,
        BACKWARDS: any(pause < 0 for pause in pauses),
        UNEVEN: bool(pauses) and max(pauses) > 5 * median(pauses),
        SHORT: sum(pauses) < 1000 * history,
        UNDER_WAY: offsets[-1] not in logged(checkpoint, "commits"),
    }
    return {reason for reason, applies in found.items() if applies}


def silence(checkpoint: Path, *, factor: float, minimum: float) -> float:
    """Seconds of silence that prove that the query is stopped, if nothing stands against it."""
    moments = [moment for moment in times(checkpoint) if moment is not None]
    return max(minimum, factor * max(after - before for before, after in pairwise(moments)) / 1000)
