"""A schedule that a declaration may have is one that Airflow takes, and has dates before and after now."""

from __future__ import annotations

import pendulum
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags
from airflow_ckpt_provider.streams.cron import is_cron, longest_interval
from airflow_ckpt_provider.streams.stream import Backup, Stream


def _field(low: int, high: int, *more: str) -> st.SearchStrategy[str]:
    value = st.integers(low, high).map(str) | st.sampled_from(more or ("*",))
    step = st.sampled_from(["", "", "/1", "/7", "/40"])
    part = st.one_of(value, st.builds("{}-{}{}".format, value, value, step), st.builds("{}{}".format, value, step))
    return st.one_of(st.just("*"), part, st.lists(part, min_size=2, max_size=3).map(",".join))


_FIELDS = (
    _field(0, 59),
    _field(0, 23),
    _field(1, 31, "L", "?"),
    _field(1, 12, "JAN", "feb"),
    _field(0, 7, "MON", "sun", "L5", "FRI#1", "0#5", "?"),
)


@given(st.tuples(*_FIELDS).map(" ".join))
def test_airflow_takes_it(cron: str) -> None:
    assume(is_cron(cron))
    timetable = CronDataIntervalTimetable(cron, timezone="UTC")
    timetable.validate()
    for catchup in (True, False):
        begin = TimeRestriction(pendulum.datetime(2026, 1, 1), None, catchup)
        assert timetable.next_dagrun_info(last_automated_data_interval=None, restriction=begin)


@given(st.tuples(*_FIELDS).map(" ".join))
def test_no_interval_of_airflow_is_longer_than_the_longest(cron: str) -> None:
    assume(is_cron(cron))
    timetable = CronDataIntervalTimetable(cron, timezone="UTC")
    at = timetable._get_next(pendulum.datetime(2026, 1, 1))
    for _ in range(60):
        before, at = at, timetable._get_next(at)
        assert at - before <= longest_interval(cron)


def test_an_id_that_is_too_long_for_airflow_ends_with_a_hash() -> None:
    minutes = ",".join(map(str, range(58)))
    streams = [
        Stream("x" * 150 + hour, checkpoint=f"/{hour}", repository="/b", backup=Backup(schedule=f"{minutes} {hour} * * *"))
        for hour in ("1", "2")
    ]  # fmt: skip
    made = stream_dags(streams, per_stream=True)
    assert max(map(len, made)) == 250
    assert len({dag_id for dag_id in made if "_backup_" in dag_id}) == 2
