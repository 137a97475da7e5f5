"""Sources that make their own rows, so that none can be gone: Spark's ``rate``, by the file that only it writes.

Its offset is a plain number, as those of a socket, of ``MemoryStream`` and of many sources of others are. So the offset shows
nothing. ``rate`` writes its start time once into ``sources/<n>/0`` (``RateStreamMicroBatchStream``); a socket writes nothing.
``rate-micro-batch`` writes no file at all, and a source of somebody else may have offsets of that form: it is not judged.
"""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.logs import batch_id_of, split_log
from airflow_ckpt_provider.checkpoint.source_offsets import RateOffset
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import SourceReport

KIND = RateOffset.kind
#: The name of the file in ``sources/<n>``.
_FILE = "0"


class RateGuard:
    """Judges sources whose offsets are those of ``rate``: ``SAFE`` only by the start time that ``rate`` writes.

    :param settings: it has none of its own.
    """

    kind = KIND

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings

    def recognises(self, source: GuardedSource) -> bool:
        """Whether its offset may be one of ``rate``."""
        return isinstance(source.start.offset, RateOffset)

    def judge(self, source: GuardedSource) -> SourceReport:
        """Read the start time."""
        where = f"sources/{source.name}/{_FILE}"
        content = source.first_file
        if content is None and source.log is not None:
            try:
                content = source.log.read(_FILE)
            except FileNotFoundError:
                content = None
        if content is None:
            return not_guarded(
                source,
                f"its offset is a plain number, and there is no {where} with a start time to show that it is a source of "
                "Spark's format rate: a socket and other sources have such offsets too",
            )
        if not _is_start_time(content, where):
            return not_guarded(
                source, f"{where} holds no start time of Spark's format rate: it is another source, or torn"
            )
        return SourceReport(source.name, KIND)


def _is_start_time(content: bytes, path: str) -> bool:
    try:
        _, lines = split_log(content, path=path, batch_id=None, known=frozenset({1}))
    except UnreadableLogError:
        return False
    return len(lines) == 1 and batch_id_of(lines[0]) is not None
