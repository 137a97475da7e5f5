"""Settings: what the offset log pins, and what a start takes from it whatever the session says."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.query_shape import QueryShape
from airflow_ckpt_provider.upgrade.compatibility import kinds
from airflow_ckpt_provider.upgrade.compatibility.change import Change
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription

_SPECIAL = {
    "spark.sql.shuffle.partitions": kinds.PARTITIONS_IGNORED,
    "spark.sql.streaming.stateStore.providerClass": kinds.PROVIDER_IGNORED,
}
#: From this commit log version on, the state is in checkpoint format 2.
_COMMITS_OF_FORMAT_2 = 2
#: From this Spark on, the format of the state is that of the newest commit, whatever the session says.
_GOES_BY_THE_COMMIT = (4, 3)


def setting_changes(old: QueryShape, new: QueryShape) -> Iterator[Change]:
    """Compare the pinned settings.

    :param old: of the checkpoint.
    :param new: of the new code.
    """
    for key in sorted(new.conf):
        value = new.conf[key]
        if key not in old.conf:
            if old.conf:
                yield Change(kinds.SETTING_DEFAULT, key, f"{key}={value} now; the checkpoint has none")
        elif old.conf[key] != value:
            kind = _SPECIAL.get(key, kinds.SETTING_IGNORED)
            yield Change(kind, key, f"{key}={old.conf[key]} in the checkpoint, {value} in the new code")


def state_format_changes(old: QueryShape, description: QueryDescription, spark: tuple[int, int]) -> Iterator[Change]:
    """Compare the format of state checkpoints, which is not pinned: Spark before 4.3 goes by the session.

    :param spark: version of the new code's Spark.
    """
    if old.commit_log is None or not old.operators or spark >= _GOES_BY_THE_COMMIT:
        return
    format_of_checkpoint = 2 if old.commit_log >= _COMMITS_OF_FORMAT_2 else 1
    if format_of_checkpoint != description.state_format:
        key = "spark.sql.streaming.stateStore.checkpointFormatVersion"
        said = f"{key}={description.state_format} in the new code, the checkpoint's state is of format {format_of_checkpoint}"
        yield Change(kinds.STATE_FORMAT, key, said)
