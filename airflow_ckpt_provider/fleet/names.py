"""The name that each of many streams gets in one repository."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX

#: Last segments that say nothing of the stream: the one before them does.
_GENERIC = frozenset({"_checkpoint", "_checkpoints", "checkpoint", "checkpoints", "ckpt", "_ckpt", "_chk", "chk"})
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=-]")


def backup_names(streams: Sequence[tuple[str, int]]) -> list[str]:
    """Name streams: the last segment of each path, and as many before it as tell it from the others.

    The last segment is the name that a backup gives by itself. What says nothing (``_checkpoint``) is left out at the end,
    and so is the number of a pipeline's flow. The names do not depend on the order of the paths.

    :param streams: path of each checkpoint, all different, and how many segments its name has at least.
    """
    parts = [_segments(path) for path, _ in streams]
    lengths = [min(max(1, least), len(p)) for p, (_, least) in zip(parts, streams, strict=True)]
    while True:
        names = [_joined(p, n) for p, n in zip(parts, lengths, strict=True)]
        taken = Counter(names)
        longer = [taken[name] > 1 and n < len(p) for name, n, p in zip(names, lengths, parts, strict=True)]
        if not any(longer):
            break
        lengths = [n + more for n, more in zip(lengths, longer, strict=True)]
    marked = (
        f"{name}-{_mark(path)}" if taken[name] > 1 else name for name, (path, _) in zip(names, streams, strict=True)
    )
    return list(marked)


def _segments(path: str) -> list[str]:
    segments = [segment for segment in path.split("/") if segment]
    while len(segments) > 1 and (segments[-1] in _GENERIC):
        segments.pop()
    return segments or ["root"]


def _joined(segments: list[str], count: int) -> str:
    words = [word for i, word in enumerate(segments[-count:]) if i == 0 or word != segments[-count:][i - 1]]
    name = _NOT_IN_NAMES.sub("_", ".".join(words))
    while ".." in name:
        name = name.replace("..", "._")
    if name.endswith(SAFETY_SUFFIX):  # such a name is that of safety backups, which nothing takes for the newest
        name = name.removesuffix(SAFETY_SUFFIX) + SAFETY_SUFFIX.replace(".", "_")
    return name if re.match(r"[A-Za-z0-9_]", name) else f"_{name}"


def _mark(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:8]
