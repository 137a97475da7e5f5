"""Keys that are merged into a pipeline's configuration for one update, and put back afterwards.

Python code of a pipeline reads the configuration alone: parameters of an update are available to SQL source code only
("Use parameters with pipelines", a Beta). The interface replaces all settings at once, so the same settings are sent back with
the keys changed, together with the time they had (``expected_last_modified``): an edit of somebody else in between is a conflict
and not lost. The former values are kept in the same request under a key of this package (:data:`MARK`), so whoever comes later
can put them back, also after this process was killed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.errors import ActiveUpdateError, RefusedError, WorkspaceError, WorkspaceForbiddenError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.lakeflow.following import Wait
from airflow_ckpt_provider.lakeflow.updates import (
    RUNNING,
    active_update,
    configuration_of,
    is_continuous,
    parameters_of,
    spec_of,
)
from airflow_ckpt_provider.lakeflow.workspace import Workspace

log = logging.getLogger(__name__)

#: Key of the configuration that says who changed which keys for which flows, what they were, and which of them stay.
MARK = "airflow_ckpt.put_back"
#: How often settings are sent before it is given up: after a lost answer, or an edit of somebody else in between.
_TRIES = 5
#: How whoever's keys are left in a configuration puts them back.
PUT_BACK_HINT = "put it back with PipelineConfigurationPutBackOperator(changed_by={!r}), if that run is over"
#: Extensions of source files -> their language.
_LANGUAGES = {".py": "python", ".sql": "sql"}


def language_of(spec: Mapping[str, Any]) -> str:
    """Return ``python`` or ``sql`` if all source code of a pipeline is in that language; empty where it cannot be seen.

    Files show it by their extension; a notebook's path does not, nor does a folder.
    """
    found = set()
    for library in spec.get("libraries") or ():
        path = str((library.get("file") or {}).get("path") or (library.get("glob") or {}).get("include") or "")
        found.add(next((language for end, language in _LANGUAGES.items() if path.endswith(end)), ""))
    return found.pop() if len(found) == 1 else ""


def deployed_by_bundle(spec: Mapping[str, Any]) -> bool:
    """Whether a bundle deploys the pipeline: its next deployment overwrites what is edited here."""
    return (spec.get("deployment") or {}).get("kind") == "BUNDLE"


def bundle_patch(values: Mapping[str, str]) -> str:
    """Return the part of ``databricks.yml`` that gives a pipeline these keys."""
    lines = [f"          {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    head = ["resources:", "  pipelines:", "    <name of the pipeline in the bundle>:", "      configuration:"]
    return "\n".join([*head, *(line[2:] for line in lines)])


def changed_by(configuration: Mapping[str, str]) -> str:
    """Return who has keys in a configuration that are to be put back; empty: nobody."""
    mark = _mark_of(configuration)
    return str(mark.get("by") or "somebody") if mark else ""


def needed_until(pipeline: Mapping[str, Any]) -> Wait | None:
    """Return what is waited for before keys are put back, for an update may still need them; ``None``: nothing.

    An update of a continuous pipeline does not end: its flows have read the configuration when they run.
    """
    if not is_continuous(pipeline):
        return Wait()
    active, mark = active_update(pipeline), _mark_of(configuration_of(pipeline)) or {}
    return Wait(active, RUNNING, flows=tuple(mark.get("flows") or ())) if active else None


def merge_configuration(
    workspace: Workspace,
    pipeline_id: str,
    values: Mapping[str, str],
    by: str,
    *,
    keep: Iterable[str] = (),
    flows: Iterable[str] = (),
) -> None:
    """Merge keys into a pipeline's configuration and read them back; all other settings stay as they are.

    A second call of the same caller changes nothing, and does not write over what somebody has set in between.

    :param values: key -> value.
    :param by: who does it; the same for all attempts.
    :param keep: keys that stay when the others are put back.
    :param flows: the flows that read them.
    :raises RefusedError: another caller's keys have not been put back, somebody has changed one of this caller's, or the
        workspace does not keep the settings.
    """
    before: Mapping[str, Any] | None = None
    for _ in range(_TRIES):
        pipeline = workspace.ask(pipeline_id)
        there = configuration_of(pipeline)
        mark = _mark_of(there)
        if mark and mark.get("by") != by:
            raise RefusedError(
                f"pipeline {pipeline_id}: {changed_by(there)} has changed {', '.join(mark['set'])} of its configuration, "
                "and has not put it back",
                hint=PUT_BACK_HINT.format(changed_by(there)),
            )
        if all(there.get(key) == value for key, value in values.items()):
            _see_the_rest(pipeline_id, before, pipeline)
            return
        if mark:
            _refuse_edits(pipeline_id, there, mark)
        former = {key: there.get(key) for key in values} | (mark["was"] if mark else {})
        ours = {**(mark["set"] if mark else {}), **values}
        noted = json.dumps(
            {"by": by, "set": ours, "was": former, "keep": sorted(keep), "flows": sorted(flows)}, sort_keys=True
        )
        before = pipeline  # what is sent back: an edit of somebody else up to now is in it
        _send(workspace, pipeline_id, pipeline, {**there, **values, MARK: noted})
    raise WorkspaceError(
        f"pipeline {pipeline_id}: its configuration does not have {', '.join(values)} after {_TRIES} requests",
        hint="see whether somebody else edits the pipeline; the next attempt of this task tries again",
    )


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of keys that were merged into a configuration.

    :param put_back: key -> its former value, ``None`` for a key that was removed.
    :param changed_since: key -> the value that somebody has given it since, which stands; ``None`` for one that was removed.
    :param left_to: who else has keys there that were not touched; empty: nobody.
    """

    put_back: Mapping[str, str | None] = field(default_factory=dict)
    changed_since: Mapping[str, str | None] = field(default_factory=dict)
    left_to: str = ""

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {
            "put_back": dict(self.put_back),
            "changed_since": dict(self.changed_since),
            "left_to": self.left_to or None,
        }


def put_back_configuration(
    workspace: Workspace, pipeline_id: str, by: str = "", *, keep: frozenset[str] | None = None
) -> PutBack:
    """Give keys that were merged into a configuration their former values.

    Each key is compared first: one that somebody has changed since is left as it is and named. Without keys to put back
    nothing is sent.

    :param by: only what this caller has changed; with ``/`` at its end all callers whose names begin so; empty: whoever has.
    :param keep: keys that stay as they were set; by default those that were named when they were merged.
    :raises WorkspaceError: the workspace did not take it; the keys are still there, and so is the note of what they were.
    """
    outcome = PutBack()
    for _ in range(_TRIES):
        pipeline = workspace.ask(pipeline_id)
        configuration = dict(configuration_of(pipeline))
        mark = _mark_of(configuration)
        if not mark or not _is_of(by, changed_by(configuration)):
            arrived = {key: value for key, value in outcome.put_back.items() if configuration.get(key) == value}
            return PutBack(arrived, outcome.changed_since, changed_by(configuration))
        del configuration[MARK]
        stay = frozenset(mark.get("keep") or ()) if keep is None else keep
        done: dict[str, str | None] = {}
        since: dict[str, str | None] = {}
        for key, value in mark["was"].items():
            if key in stay:
                log.info("Pipeline %s: %s stays in the configuration: its flow may still need it", pipeline_id, key)
                continue
            if configuration.get(key) != mark["set"].get(key):
                since[key] = configuration.get(key)
                log.warning(
                    "Pipeline %s: somebody has changed %s since it was merged: %r stays, and %r is not put back",
                    pipeline_id,
                    key,
                    since[key],
                    value,
                )
                continue
            done[key] = value
            if value is None:
                configuration.pop(key, None)
            else:
                configuration[key] = value
        outcome = PutBack(done, since) if _send(workspace, pipeline_id, pipeline, configuration) else PutBack()
    raise WorkspaceError(
        f"pipeline {pipeline_id}: its configuration could not be put back in {_TRIES} requests",
        hint=f"the former values are in its configuration under {MARK}: put them back by hand, or by "
        "PipelineConfigurationPutBackOperator",
    )


def _refuse_edits(pipeline_id: str, there: Mapping[str, str], mark: Mapping[str, Any]) -> None:
    """See that each key has the value that it was given, or its former one.

    :raises RefusedError: somebody has given it another one, which would be lost when the former one is put back.
    """
    for key, value in mark["set"].items():
        if there.get(key) not in (value, mark["was"].get(key)):
            raise RefusedError(
                f"pipeline {pipeline_id}: somebody has set {key} of its configuration to {there.get(key)!r} since "
                f"{mark.get('by')} has set it to {value!r}",
                hint=f"set it to {value!r} again, or end that run: PipelineConfigurationPutBackOperator leaves their value",
            )


def _is_of(by: str, whose: str) -> bool:
    return not by or whose == by or (by.endswith("/") and whose.startswith(by))


def _send(
    workspace: Workspace, pipeline_id: str, pipeline: Mapping[str, Any], configuration: Mapping[str, str]
) -> bool:
    """Send the same settings with another configuration; whether they arrived is for the next read to see.

    :return: ``False`` where the workspace has refused them because of another edit: they did not arrive.
    """
    body = {key: value for key, value in spec_of(pipeline).items() if key != "id"}
    body["configuration"] = dict(configuration)
    if parameters := parameters_of(pipeline):
        body["parameters"] = dict(parameters)  # is beside the specification, and is gone where it is left out
    if pipeline.get("last_modified"):
        body["expected_last_modified"] = pipeline["last_modified"]
    try:
        workspace.edit_pipeline(pipeline_id, body)
    except WorkspaceForbiddenError as e:
        raise WorkspaceForbiddenError(
            e.message, status=e.status, error_code=e.error_code, hint="an edit needs the permission CAN MANAGE"
        ) from e
    except ActiveUpdateError as e:
        log.warning("Pipeline %s was edited by somebody else in between, reading it again: %s", pipeline_id, e.message)
        return False
    except WorkspaceError as e:
        log.warning("Pipeline %s: reading whether its settings were changed: %s", pipeline_id, e.message)
    return True


def _see_the_rest(pipeline_id: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
    """See that nothing but the configuration has changed."""
    if before is None:
        return
    then, now = ({**spec_of(p), "parameters": dict(parameters_of(p))} for p in (before, after))
    changed = sorted(k for k in {*then, *now} - {"configuration"} if then.get(k) != now.get(k))
    lost = sorted({*configuration_of(before)} - {*configuration_of(after)})
    if changed or lost:
        raise RefusedError(
            f"pipeline {pipeline_id}: with its configuration the workspace has changed {', '.join(changed + lost)}",
            hint="compare the pipeline's settings with those of its deployment before it is run",
        )


def _mark_of(configuration: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        mark = load_json(configuration.get(MARK) or "null")
    except ValueError:
        mark = None
    good = isinstance(mark, dict) and isinstance(mark.get("set"), dict) and isinstance(mark.get("was"), dict)
    if MARK in configuration and not good:
        raise RefusedError(
            f"{MARK} of the pipeline's configuration cannot be read: {configuration[MARK][:80]!r}",
            hint="remove that key from the pipeline's settings, and see that the others are as they should be",
        )
    return mark if good else None
