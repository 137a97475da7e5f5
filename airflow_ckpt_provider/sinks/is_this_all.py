"""Whether the sinks that a person named may not be all that a query writes to: its code decides, and no checkpoint names it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableHistory

#: What Delta's own sink calls its commits in the log; the code of a ``foreachBatch`` makes any other.
_OF_ITS_OWN_SINK = "STREAMING UPDATE"
_CODE = ("foreachBatch", "foreach")


def is_this_all(sinks: Sequence[tuple[Sink, TableHistory | None]], ids: QueryIds | None) -> str | None:
    """The question to whoever approves a plan, where a query's code writes to its sinks; ``None`` where Spark's own sink does.

    :param sinks: the sinks that were named, each with its log.
    :param ids: the ids of the query.
    """
    named = [sink for sink, _ in sinks if sink.name]
    if not named or not (len(named) > 1 or any(_is_of_code(sink, history, ids) for sink, history in sinks)):
        return None
    known = ", ".join(f"`{sink.name}`" for sink in named)
    return (
        f"the code of a foreachBatch or foreach decides what the query writes to, and the checkpoint does not name it. This plan "
        f"knows of {known}. Is this all of it? A sink that is not named is neither judged nor rolled back"
    )


def notes_on(sinks: Sequence[tuple[Sink, TableHistory | None]], ids: QueryIds | None) -> tuple[str, ...]:
    """What a plan says of its sinks besides: what became of names, and the question whether these are all."""
    resolved = tuple(sink.resolved for sink, _ in sinks if sink.resolved)
    question = is_this_all(sinks, ids)
    return (*resolved, question) if question else resolved


def _is_of_code(sink: Sink, history: TableHistory | None, ids: QueryIds | None) -> bool:
    if sink.kind in _CODE:
        return True
    if history is None or history.format != "delta" or ids is None:
        return False
    own = ids.known_as(sink.app_id)
    written = [c for c in history.commits if own.batch_in(c) is not None and not c.plan_id]
    return any(commit.operation != _OF_ITS_OWN_SINK for commit in written)
