"""``TellOfFailure``: the notifiers of the task's stream are told, whatever the error is like, and it never fails."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags
from airflow_ckpt_provider.dag_factory.told import TellOfFailure, ToldError
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.fleet import ProblemsError
from airflow_ckpt_provider.operators.stream_action import StreamActionOperator
from airflow_ckpt_provider.streams.stream import Notifier, Stream
from airflow_ckpt_provider.streams.streams import Streams

TOLD: list[str] = []


class Told:
    """A notifier that notes who was told."""

    def __init__(self, *, who: str) -> None:
        self._who = who

    def __call__(self, context: Any) -> None:
        TOLD.append(self._who)


class Broken:
    """A notifier that fails."""

    def __call__(self, context: Any) -> None:
        raise OSError("no route to the pager")


class Unspeakable(Exception):
    """An error whose message cannot be made, nor its truth."""

    def __str__(self) -> str:
        raise AttributeError("response")

    def __bool__(self) -> bool:
        raise AttributeError("response")


@pytest.mark.parametrize("error", [Unspeakable(), ValueError("no"), None])
def test_everybody_is_told_of_whatever_error(error: Exception | None) -> None:
    TOLD.clear()
    notifiers = (
        Notifier(notifier=f"{__name__}.Broken"),
        Notifier(notifier="no.such.Notifier"),
        Notifier(notifier=f"{__name__}.Told", arguments={"who": "on call"}),
    )
    streams = Streams([Stream("orders", checkpoint="/orders", notifiers=notifiers)])
    task = StreamActionOperator(task_id="task", stream="orders", action="stop")
    TellOfFailure(streams)({"exception": error, "task": task})  # type: ignore[typeddict-item]
    assert TOLD == ["on call"]


def dags(orders: str = "/orders") -> dict[str, Any]:
    """The DAGs of two streams, whose notifiers have their names.

    :param orders: the checkpoint of one of them.
    """
    acts = dict.fromkeys(("stop", "start", "deploy", "roll_back"), "true")
    streams = [
        Stream(
            name,
            checkpoint=orders if name == "orders" else f"/{name}",
            repository="/backups",
            kafka_conn_id="kafka",
            retention={"keep_last": 3},
            drill={"build": "code:build", "scratch": "/scratch"},
            application="shop" if name == "clicks" else None,
            notifiers=(Notifier(notifier=f"{__name__}.Told", arguments={"who": name}),),
            **acts,
        )
        for name in ("orders", "clicks")
    ]
    return stream_dags(streams)


def told_by(dag_id: str, task_id: str, *, error: Exception | None = None, **context: Any) -> list[str]:
    """Who is told by a task in the state in which the DAG processor has it: not rendered, and still mapped."""
    dag = dags()[dag_id]
    task = dag.get_task(task_id)
    TOLD.clear()
    callback: Any = task.on_failure_callback
    for each in callback if isinstance(callback, list) else [callback]:
        each({"exception": error, "task": task, "dag": dag, **context})
    return list(TOLD)


@pytest.mark.parametrize(
    ("dag_id", "task_id"),
    [
        ("ckpt_backup_daily", "stream.back_up"),
        ("ckpt_backup_daily", "stream.verify"),
        ("ckpt_retention", "stream.expire"),
        ("ckpt_watch", "stream.time_to_loss"),
        ("ckpt_watch", "stream.alarm"),
    ],
)
def test_a_lost_worker_of_a_mapped_task_is_told_to_its_stream(dag_id: str, task_id: str) -> None:
    assert told_by(dag_id, task_id, ti=SimpleNamespace(map_index=1), params={}) == ["clicks"]


@pytest.mark.parametrize(
    ("dag_id", "task_id"),
    [("ckpt_restore", "plan"), ("ckpt_rewind", "stop"), ("ckpt_undo", "ready"), ("ckpt_upgrade", "upgrade.begin")],
)
def test_a_lost_worker_of_a_form_is_told_to_the_stream_that_was_chosen(dag_id: str, task_id: str) -> None:
    assert told_by(dag_id, task_id, params={"stream": "orders"}) == ["orders"]


def test_where_the_stream_is_not_known_all_of_the_dag_are_told() -> None:
    assert told_by("ckpt_restore", "plan") == ["orders", "clicks"]
    assert told_by("ckpt_incidents", "tell") == ["orders", "clicks"]
    assert told_by("ckpt_report", "report") == ["orders", "clicks"]
    assert told_by("ckpt_backup_daily", "stream.back_up") == ["orders", "clicks"]  # no map index
    assert told_by("ckpt_upgrade_shop", "upgrade.begin", error=ValueError("no")) == ["clicks"]


def test_nobody_is_told_twice_or_of_the_streams_of_others() -> None:
    assert told_by("ckpt_watch", "stream.alarm", error=ToldError("too little")) == []
    assert told_by("ckpt_report", "report", error=ProblemsError("orders is beyond its limits")) == []


def test_a_report_that_cannot_be_made_is_told_to_all(tmp_path: Path) -> None:
    """Nobody else says that the repository is gone, or that the store does not answer."""
    gone = Stream("orders", checkpoint=str(tmp_path / "orders"), repository=str(tmp_path / "gone"))
    with pytest.raises(AirflowFailException, match="is not a repository") as refused:
        stream_dags([gone])["ckpt_report"].get_task("report").execute({})
    for error in (refused.value, StorageError("s3://backups: no answer")):
        assert told_by("ckpt_report", "report", error=error) == ["orders", "clicks"]


def test_a_drill_has_its_stream() -> None:
    """As a parameter, which Airflow puts into the context of the unmapped task."""
    assert told_by("ckpt_drill", "drill", params={"stream": "clicks"}, error=ValueError("no")) == ["clicks"]


AZURE = "abfss://ck@shop.dfs.core.windows.net/orders"


@pytest.mark.parametrize(
    ("declared", "seen", "told"),
    [
        ("/ck/orders", "/ck/orders", ["orders"]),
        ("s3a://conn@ck/orders", "s3://ck/orders", ["orders"]),
        (AZURE, "abfs://ck/orders", ["orders"]),
        (AZURE, "abfs://other/orders", ["orders", "clicks"]),
    ],
)
def test_an_incident_is_told_however_the_store_spells_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, declared: str, seen: str, told: list[str]
) -> None:
    """If no stream has that checkpoint, the notifiers of all streams are called."""
    words = {"incident": "stuck", "checkpoint": seen, "message": "stuck", "hint": "see"}
    happened(monkeypatch, {"payload": words})
    TOLD.clear()
    dags(orders=declared)["ckpt_incidents"].get_task("tell").python_callable()
    assert told == TOLD


def happened(monkeypatch: pytest.MonkeyPatch, *extras: dict[str, Any]) -> None:
    """Have the run of the task be started by events."""
    asset = SimpleNamespace(name="ckpt_incidents")
    events = [SimpleNamespace(asset=asset, extra=extra, timestamp=number) for number, extra in enumerate(extras)]
    context = {"triggering_asset_events": defaultdict(lambda: events)}
    monkeypatch.setattr("airflow_ckpt_provider.dag_factory.scheduled.get_current_context", lambda: context)


def test_an_event_by_hand_does_not_keep_an_incident_from_being_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = {"incident": "stuck", "checkpoint": "/clicks", "message": "stuck", "hint": "see"}
    extras = [{"from_rest_api": True}, {"payload": "stuck"}, {"payload": {"incident": "stuck"}}, {"payload": words}]
    happened(monkeypatch, *extras)
    TOLD.clear()
    assert dags()["ckpt_incidents"].get_task("tell").python_callable() == [words]
    assert TOLD == ["clicks"]
    left_out = "The event of asset ckpt_incidents at {} reports no incident: left out"
    assert caplog.messages == [left_out.format(number) for number in range(3)]
