"""Rewind: about every hour a point of each dataset and its checkpoints, kept for seven days."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.fake_databricks.clock import parse, text
from tests.fake_databricks.errors import FlowFailed
from tests.fake_databricks.flows import Checkpoint
from tests.fake_databricks.updates import Update

if TYPE_CHECKING:
    from tests.fake_databricks.pipelines import Pipeline

EVERY = timedelta(hours=1)
KEPT = timedelta(days=7)
ENABLED = "pipelines.rewind.betaEnabled"


@dataclass(frozen=True, slots=True)
class Point:
    """Versions of the tables and copies of the checkpoints, as they were at a time."""

    time: datetime
    versions: dict[str, int]
    checkpoints: dict[str, Checkpoint | None]


class Points:
    """The rewind points of a pipeline."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        #: An UNSUPPORTED_REWIND class that every rewind meets.
        self.refuse = ""

    def take(self, pipeline: Pipeline) -> None:
        """Keep a point, if the last one is an hour old."""
        now = pipeline.clock.now()
        if self.points and now - self.points[-1].time < EVERY:
            return
        versions = {name: pipeline.tables.version(pipeline.table(name)) for name in pipeline.datasets}
        checkpoints = {flow.name: flow.checkpoint and flow.checkpoint.copy() for flow in pipeline.flows.values()}
        self.points.append(Point(now, versions, checkpoints))

    def rewind(self, pipeline: Pipeline, update: Update) -> None:
        """Take datasets and checkpoints back to the newest point that is not after the time asked for; replay nothing.

        :raises FlowFailed: rewind is not enabled, or there is no such point.
        """
        spec: dict[str, Any] = update.body["rewind_spec"]
        self._allowed(pipeline)
        time = parse(spec["rewind_timestamp"])
        now = pipeline.clock.now()
        points = [point for point in self.points if point.time <= time and now - point.time <= KEPT]
        if not points or time > now:
            raise _unsupported("REWIND_POINT_NOT_FOUND", f"There is no rewind point at or before {text(time)}.")
        point = points[-1]
        dry_run = bool(spec.get("dry_run"))
        for name, reset in self._datasets(pipeline, spec):
            verb = "would be rewound" if dry_run else "is rewound"
            kept = "" if reset else "; its checkpoints stay where they are"
            message = f"Dataset '{pipeline.shown(name)}' {verb} to {text(point.time)}{kept}."
            names = {"update_id": update.update_id, "dataset_name": pipeline.shown(name)}
            pipeline.events.note("rewind_progress", message, of=names)
            if not dry_run:
                self._go_back(pipeline, point, name, reset)

    def _allowed(self, pipeline: Pipeline) -> None:
        if self.refuse:
            raise _unsupported(self.refuse, "This pipeline cannot be rewound.")
        if pipeline.configuration.get(ENABLED, "").lower() != "true":
            raise _unsupported("UNSUPPORTED_REWIND_CONFIGURATION.REWIND_NOT_ENABLED", f"Set {ENABLED} to true.")
        if pipeline.spec["channel"] != "PREVIEW":
            message = "Rewind needs the PREVIEW channel."
            raise _unsupported("UNSUPPORTED_REWIND.DBR_VERSION_TOO_LOW", message)
        if not any(each.state == "COMPLETED" and not each.body.get("validate_only") for each in pipeline.updates):
            message = "A flow has no completed update yet."
            raise _unsupported("UNSUPPORTED_REWIND.CHECKPOINT_NOT_UPGRADED", message)

    def _datasets(self, pipeline: Pipeline, spec: dict[str, Any]) -> Iterable[tuple[str, bool]]:
        if not spec.get("datasets"):
            return [(name, True) for name in pipeline.datasets]
        chosen: dict[str, bool] = {}
        for dataset in spec["datasets"]:
            name = pipeline.bare(dataset["identifier"])
            if name not in pipeline.datasets:
                raise FlowFailed("TABLE_OR_VIEW_NOT_FOUND", f"Dataset {dataset['identifier']} is not in the pipeline.")
            # Cascade and reset are what happens unless the request says otherwise.
            reset = dataset.get("reset_checkpoints", True)
            for each in [name, *(_downstream(pipeline, name) if dataset.get("cascade", True) else ())]:
                chosen[each] = reset
        return chosen.items()

    def _go_back(self, pipeline: Pipeline, point: Point, name: str, reset: bool) -> None:
        pipeline.tables.restore(pipeline.table(name), point.versions[name], "REWIND")
        for flow in pipeline.flows.values():
            if flow.dataset == name and reset:
                kept = point.checkpoints.get(flow.name)
                flow.checkpoint = kept and kept.copy()
                flow.error = None
                flow.resets += 1


def _downstream(pipeline: Pipeline, name: str) -> list[str]:
    found: list[str] = []
    for flow in pipeline.flows.values():
        if name in flow.sources and flow.dataset not in found:
            found += [flow.dataset, *_downstream(pipeline, flow.dataset)]
    return found


def _unsupported(error_class: str, message: str) -> FlowFailed:
    return FlowFailed(error_class, message, "com.databricks.pipelines.common.errors.DLTAnalysisException")
