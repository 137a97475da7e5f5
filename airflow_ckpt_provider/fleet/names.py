"""The name that each of many streams gets in one repository."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_ckpt_provider.backup.stream_names import joined_name, path_mark, telling_segments


def backup_names(streams: Sequence[tuple[str, int]]) -> list[str]:
    """Name streams: the last segment of each path, and as many before it as tell it from the others.

    What says nothing (``_checkpoint``) is left out at the end, and so is the number of a pipeline's flow. The names do not depend
    on the order of the paths.

    :param streams: path of each checkpoint, all different, and how many segments its name has at least.
    """
    parts = [telling_segments(path) for path, _ in streams]
    lengths = [min(max(1, least), len(p)) for p, (_, least) in zip(parts, streams, strict=True)]
    while True:
        names = [joined_name(p[-n:]) for p, n in zip(parts, lengths, strict=True)]
        taken = Counter(names)
        longer = [taken[name] > 1 and n < len(p) for name, n, p in zip(names, lengths, parts, strict=True)]
        if not any(longer):
            break
        lengths = [n + more for n, more in zip(lengths, longer, strict=True)]
    marked = (
        f"{name}-{path_mark(path)}" if taken[name] > 1 else name for name, (path, _) in zip(names, streams, strict=True)
    )
    return list(marked)
