"""The vendor's own rewind: tables and checkpoints are rewound to a time together, and a later update reads the input again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.examine import Examined, room_step
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan
from airflow_ckpt_provider.lakeflow.refresh_plan import (
    judge_other_fields,
    judge_refresh,
    judge_reset_besides,
    wiped_tables,
)
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, FAILED
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.units import format_duration
from airflow_ckpt_provider.verdict import Verdict

#: How long the workspace keeps rewind points.
KEPT = timedelta(days=7)
ENABLED = "pipelines.rewind.betaEnabled"
#: Updates that are looked through for one that was completed.
_LOOKED_AT = 100


def rewind_time(given: str, timezone: str | None = None) -> datetime:
    """Read the time to rewind to, in UTC.

    :param given: ISO 8601; without an offset it is a wall clock's time in ``timezone``.
    :param timezone: name of a time zone, such as ``Europe/Berlin``; an offset in ``given`` comes first.
    :raises RefusedError: it is no time, no zone says which, or the clocks were changed then.
    """
    try:
        time = datetime.fromisoformat(given.strip())
    except ValueError as e:
        raise RefusedError(f"to is {given!r}", hint="give a time such as 2026-08-21T12:00:00+02:00") from e
    if time.tzinfo:
        return time.astimezone(UTC)
    if not timezone:
        raise RefusedError(
            f"to is {given!r}: it is not said in which time zone",
            hint="add the offset (2026-08-21T12:00:00Z), or give timezone='Europe/Berlin'",
        )
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError) as e:
        raise RefusedError(
            f"timezone is {timezone!r}, which is no time zone", hint="give one such as Europe/Berlin"
        ) from e
    first, second = (time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first != second:
        words = "was skipped" if first > second else "came twice"
        raise RefusedError(
            f"{given} {words} in {timezone}: the clocks were changed",
            hint=f"say which is meant with an offset: {first.isoformat()} or {second.isoformat()}",
        )
    return first


def rewind_datasets(given: Any) -> list[dict[str, Any]]:
    """Read the datasets, with cascade and the reset of checkpoints made explicit.

    :param given: names, or dictionaries with ``identifier`` and, where it is to be false, ``cascade`` and
        ``reset_checkpoints``; nothing: every dataset.
    :raises RefusedError: one has no name.
    """
    found = []
    for each in [given] if isinstance(given, str | Mapping) else given or ():
        dataset = {"identifier": each} if isinstance(each, str) else dict(each)
        if not dataset.get("identifier"):
            raise RefusedError(
                f"datasets has {each!r}, which names none", hint='give {"identifier": "catalog.schema.table"}'
            )
        found.append({"cascade": True, "reset_checkpoints": True, **dataset})
    return found


def rewind_spec(to: datetime, datasets: Sequence[Mapping[str, Any]], *, dry_run: bool) -> dict[str, Any]:
    """Return the ``rewind_spec`` of a start."""
    spec: dict[str, Any] = {
        "rewind_timestamp": to.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "dry_run": dry_run,
    }
    if datasets:
        spec["datasets"] = [dict(dataset) for dataset in datasets]
    return spec


def plan_pipeline_rewind(
    workspace: Workspace,
    examined: Examined,
    rewind: StartRequest,
    dry_run: StartRequest,
    replay: StartRequest | None,
    *,
    to: datetime,
    on_active_update: str = "fail",
    wait_for: str | None = COMPLETED,
    now: datetime | None = None,
) -> PipelinePlan:
    """Plan a rewind; reads only: the dry run is an update too, and belongs to the applying.

    :param rewind: the rewind.
    :param dry_run: the same, tried first.
    :param replay: the update that reads the input again afterwards; ``None``: somebody else starts it.
    :param to: the time to rewind to.
    :param wait_for: the state of the replay that is waited for.
    :param now: the time; that of the clock by default.
    """
    room = room_step(examined, on_active_update, wait_for if replay else None)
    now = now or datetime.now(UTC)
    path = f"2.0/pipelines/{examined.pipeline_id}/updates"
    datasets = rewind.body["rewind_spec"].get("datasets") or []
    which = ", ".join(dataset["identifier"] for dataset in datasets) or "every dataset of the pipeline"
    time = rewind.body["rewind_spec"]["rewind_timestamp"]
    warnings = examined.warnings()
    warnings.append(
        "rewinding is a Beta of the vendor; what is downstream of a rewound dataset is rewound with it (cascade)"
    )
    for dataset in datasets:
        if not dataset["cascade"]:
            warnings.append(
                f"{dataset['identifier']}: without cascade what is downstream keeps rows that are read again"
            )
        if not dataset["reset_checkpoints"]:
            warnings.append(
                f"{dataset['identifier']}: without reset_checkpoints its flows read on where they stand: a gap"
            )
    if replay is None:
        warnings.append("a rewind does not start the replay: the tables stay short until the next update")
    steps = [
        room,
        f"try it (dry_run) to {time}: {which}; nothing is changed",
        f"rewind {which} to {time}, tables and checkpoints together",
    ]
    calls = [("POST", path, dry_run.body), ("POST", path, rewind.body)]
    if replay is not None:
        steps.append("start an update of its own, which reads the input since then again")
        calls.append(("POST", path, replay.body))
    emptied = wiped_tables(examined, replay) if replay and replay.empties else ()
    return PipelinePlan(
        kind="pipeline-rewind",
        pipeline_id=examined.pipeline_id,
        pipeline_name=examined.name,
        calls=tuple(calls),
        steps=tuple(steps),
        judgements=(*_preconditions(workspace, examined, to, now), *_of_replay(workspace, examined, replay, emptied)),
        warnings=tuple(warnings),
        rows=(*examined.rows(), ("to", f"{time} ({format_duration(now - to)} ago)"), ("datasets", which)),
        facts={"rewind_timestamp": time, "datasets": datasets, "replay": replay is not None},
        emptied=emptied,
        specification=examined.specification,
    )


def _of_replay(
    workspace: Workspace, examined: Examined, replay: StartRequest | None, emptied: Sequence[str]
) -> list[Judgement]:
    """What the update after the rewind empties or resets, by fields that were passed through."""
    if replay is None:
        return []
    return [
        *judge_refresh(workspace, examined, replay, emptied),
        *judge_reset_besides(replay),
        *judge_other_fields(replay),
    ]


def _preconditions(workspace: Workspace, examined: Examined, to: datetime, now: datetime) -> list[Judgement]:
    fail, found = Verdict.WILL_FAIL, []
    channel = str(examined.spec.get("channel") or "CURRENT")
    if channel.upper() != "PREVIEW":
        found.append(Judgement(fail, f"the pipeline's channel is {channel}: rewinding needs PREVIEW"))
    if str(examined.configuration.get(ENABLED, "")).lower() != "true":
        found.append(Judgement(fail, f"the pipeline's configuration has not {ENABLED}=true: rewinding is not enabled"))
    if any(
        "realtime" in str(key).lower() and str(value).lower() == "true" for key, value in examined.configuration.items()
    ):
        found.append(Judgement(fail, "the pipeline runs in real-time mode, which cannot be rewound"))
    if to > now:
        found.append(Judgement(fail, f"{to.isoformat()} lies in the future"))
    elif now - to > KEPT:
        found.append(Judgement(fail, f"{to.isoformat()} is more than 7 days ago: rewind points are kept for 7 days"))
    completed = None
    for number, update in enumerate(workspace.iter_updates(examined.pipeline_id)):
        if number >= _LOOKED_AT:
            break
        if update.get("state") == COMPLETED and not update.get("validate_only"):
            completed = update
    created = (completed or {}).get("creation_time")
    if completed is None:
        found.append(Judgement(fail, "no update was completed yet: there is no rewind point"))
    elif isinstance(created, int) and datetime.fromtimestamp(created / 1000, UTC) > to:
        found.append(
            Judgement(
                Verdict.UNKNOWN,
                f"the oldest completed update that is known began after {to.isoformat()}: whether there is a rewind point before "
                "it is seen in the dry run",
            )
        )
    if examined.pipeline.get("state") == FAILED:
        found.append(Judgement(Verdict.SAFE, "the pipeline's last update failed; a rewind reaches behind it"))
    return found
