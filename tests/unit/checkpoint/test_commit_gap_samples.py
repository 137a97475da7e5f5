"""No false alarm on anything that a real Spark left behind, of any version and kind."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.checkpoint.waiting import State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from tests.samples.archives import VERSIONS, kinds_of, sample
from tests.support.timed_store import NOON, Stream, at


@pytest.mark.parametrize("version", VERSIONS)
def test_stopped_streams(version: str) -> None:
    """Committed to their newest batch: drained, and not stuck however long ago. Else stuck, once they are old."""
    kinds = kinds_of(version)
    assert {"rate_async", "rate_continuous"} & set(kinds) or version < "3.5"
    for kind in kinds:
        stream = Stream()
        for path, content in sample(version, kind).files.items():
            stream.put(path, content, NOON)
        logged, committed = (
            max(int(f.rpartition("/")[2]) for f in stream.store.files if f"/{log}/" in f and f.split("/")[-1].isdigit())
            for log in ("offsets", "commits")
        )
        drained = Wait(Condition("drained"), stuck_after=timedelta(hours=1))
        first, memory = look(stream.location, drained, Memory(), now=at(1))
        assert first.state is (State.DONE if logged == committed else State.WAITING), (kind, first.message)
        assert (first.progress["latest_logged"], first.progress["latest_committed"]) == (logged, committed)
        later, _ = look(stream.location, drained, memory, now=at(100))
        assert later.state is (State.DONE if logged == committed else State.STUCK), (kind, later.message)
        more = Wait(Condition("progressed_by", 1), stuck_after=timedelta(hours=1))
        if logged == committed:
            assert look(stream.location, more, Memory(), now=at(999))[0].state is State.WAITING, kind
