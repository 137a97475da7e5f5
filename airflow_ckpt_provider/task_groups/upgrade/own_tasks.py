"""Makes the tasks of an upgrade that are of this package: for one stream, or for each stream of an application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule

from airflow_ckpt_provider.operators.upgrade_operator import UpgradeOperator, task_part
from airflow_ckpt_provider.operators.upgrade_switch import UpgradeSealOperator
from airflow_ckpt_provider.streams.stream import Stream

#: Makes a task of yours, given its id.
MakeTask = Callable[[str], BaseOperator]
#: A task, or several that come one beside the other.
Tasks = BaseOperator | TaskGroup
#: Arguments of the task of a stream, given its name.
OfStream = Callable[[str], Mapping[str, Any]]

#: A task that hangs does not keep an upgrade for ever; the seal stops the stream whatever the stop did.
_STOP_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True)
class OwnTasks:
    """Makes the tasks of this package, with what they have in common.

    :param where: of the checkpoint.
    :param kept: of the repository.
    :param every: what each of them is given.
    :param stream: the stream that is declared.
    :param streams: the streams of the application that is upgraded; empty for one stream.
    """

    where: Mapping[str, Any]
    kept: Mapping[str, Any]
    every: Mapping[str, Any]
    stream: str | Stream | None
    streams: tuple[str | Stream, ...]

    def look(self, operator: type[BaseOperator], task_id: str, *of_stream: OfStream, **more: Any) -> Tasks:
        """One that knows the checkpoint alone; one for each stream."""
        return self.each(operator, task_id, *of_stream, **self.where, **more)

    def keep(self, operator: type[BaseOperator], task_id: str, **more: Any) -> Tasks:
        """One that knows the repository too; one for each stream."""
        return self.each(operator, task_id, **self.where, **self.kept, **more)

    def each(self, operator: type[BaseOperator], task_id: str, *of_stream: OfStream, **more: Any) -> Tasks:
        """One for each stream, in a group of the id where there are several.

        :param of_stream: more arguments, given the name of the stream; empty for one stream.
        """
        if not self.streams:
            given = {**more, **_of("", of_stream), "stream": self.stream}
            return operator(task_id=task_id, **given, **self.every)
        with TaskGroup(task_id) as group:
            for stream in self.streams:
                # What is not given comes from the declaration; a place that is given, also as None, would come before it.
                given = {
                    key: value for key, value in {**more, **_of(str(stream), of_stream)}.items() if value is not None
                }
                operator(task_id=task_part(stream), stream=stream, **given, **self.every)
        return group

    def all(self, operator: type[UpgradeOperator], task_id: str, **more: Any) -> UpgradeOperator:
        """One for all streams."""
        if not self.streams:
            places = {**self.where, **self.kept, "stream": self.stream}
            return operator(task_id=task_id, **places, **more, **self.every)
        given = {key: value for key, value in more.items() if value is not None}
        return operator(task_id=task_id, streams=self.streams, **given, **self.every)

    def stopped(self, after: BaseOperator, stop: MakeTask | None, stop_id: str, seal_id: str) -> BaseOperator:
        """A stop that may fail, and the seal that stops the stream all the same; returns the seal."""
        if stop is None:
            seal = self.all(UpgradeSealOperator, seal_id)
            after >> seal
            return seal
        task = stop(stop_id)
        task.execution_timeout = task.execution_timeout or _STOP_WITHIN
        # Runs whatever became of the stop; not where nobody has allowed it.
        allowed = after.task_id.rpartition(".")[2]
        seal = self.all(UpgradeSealOperator, seal_id, after=allowed, trigger_rule=TriggerRule.ALL_DONE)
        after >> task >> seal
        return seal


def _of(name: str, of_stream: Sequence[OfStream]) -> dict[str, Any]:
    return {key: value for each in of_stream for key, value in each(name).items()}


def one_after_the_other(*tasks: Any) -> list[Any]:
    """Wire what is there, in this order; what is left out is ``None``, ``False`` or empty."""
    there = [task for task in tasks if task]
    for task, following in pairwise(there):
        task >> following
    return there


def in_turn(tasks: Tasks, *, backwards: bool = False) -> Tasks:
    """Run the tasks of several streams one after the other instead of side by side."""
    if isinstance(tasks, TaskGroup):
        each = list(tasks.children.values())
        for task, following in pairwise(reversed(each) if backwards else each):
            task >> following
    return tasks
