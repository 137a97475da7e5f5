"""``TellOfFailure``: the notifiers of the task's stream are told, whatever the error is like, and it never fails."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

from typing import Any

import pytest

from airflow_ckpt_provider.dag_factory.told import TellOfFailure
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
