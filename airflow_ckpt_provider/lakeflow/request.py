"""The request that starts an update, and how the update that came of it is known again.

Fields: ``StartUpdate`` of databricks-sdk 0.156.0 and 0.162.0. The workspace's answers repeat the selections and parameters
of an update, but neither ``reset_checkpoint_selection`` nor ``rewind_spec``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.lakeflow.updates import API_CALL, FOLLOW_UPS

RESET, REFRESH, FULL_REFRESH = "reset_checkpoint_selection", "refresh_selection", "full_refresh_selection"
FULL_REFRESH_BY_PATH = "full_refresh_selection_by_path"
#: Fields that are known by name; any other is passed through as it is.
FIELDS = (
    "cause",
    "development",
    "full_refresh",
    FULL_REFRESH,
    FULL_REFRESH_BY_PATH,
    "parameters",
    REFRESH,
    "refresh_selection_by_path",
    "replace_where_overrides",
    RESET,
    "rewind_spec",
    "validate_only",
)
#: Fields that the workspace repeats of an update; an update with other fields looks like one without them.
_REPEATED = frozenset({"cause", "full_refresh", FULL_REFRESH, "parameters", REFRESH, "validate_only"})
#: Fields that are true or false, and those that are lists of names.
_FLAGS = frozenset({"development", "full_refresh", "validate_only"})
_LISTS = frozenset({FULL_REFRESH, FULL_REFRESH_BY_PATH, REFRESH, "refresh_selection_by_path", RESET})
#: Fields of ``pipeline_params`` and ``pipeline_task`` of the Jobs API (databricks-sdk v0.110.0 and later).
JOB_FIELDS = ("full_refresh", FULL_REFRESH, REFRESH, RESET)
TASK_FIELDS = (*JOB_FIELDS, "parameters")


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The body of a start, without empty fields.

    :param body: its fields.
    :param expected_cause: the cause that the workspace gives the update.
    :param run_parameter: name of a parameter whose value no other run has; empty: there is none.
    """

    body: Mapping[str, Any]
    expected_cause: str = API_CALL
    run_parameter: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any], more: Mapping[str, Any] | None = None, **about: Any) -> StartRequest:
        """Put a body together.

        :param fields: fields that are known by name; empty ones are left out.
        :param more: further fields of the interface's version, passed through.
        :param about: the other arguments of the class.
        :raises RefusedError: a field is given twice, or is of another kind: a text such as ``"false"`` would count as true.
        """
        body = {name: value for name, value in fields.items() if value not in (None, "", [], (), {}, False)}
        for name, value in (more or {}).items():
            if name in body and body[name] != value:
                raise RefusedError(f"{name} is given twice", hint=f"leave {name} out of body")
            body[name] = value
        for name, value in body.items():
            _check_kind(name, value)
        if cause := body.get("cause"):
            about.setdefault("expected_cause", cause)
        return cls(body, **about)

    @property
    def dry_run(self) -> bool:
        """Whether the update only validates the code: nothing is read, written or reset."""
        return bool(self.body.get("validate_only"))

    @property
    def empties(self) -> bool:
        """Whether the update empties tables."""
        return any(self.body.get(name) for name in ("full_refresh", FULL_REFRESH, FULL_REFRESH_BY_PATH))

    @property
    def fingerprint(self) -> str:
        """The same for the same body."""
        return fingerprint_of(self.body)

    def may_be(self, update: Mapping[str, Any]) -> bool:
        """Whether an update can be the one that this request started, by all that the workspace reports of it."""
        cause = update.get("cause")
        if cause in FOLLOW_UPS or (cause and cause != self.expected_cause):
            return False
        flags = all(bool(update.get(name)) == bool(self.body.get(name)) for name in ("full_refresh", "validate_only"))
        lists = all(_set(update.get(name)) == _set(self.body.get(name)) for name in (REFRESH, FULL_REFRESH))
        return flags and lists and self._has_parameters(update.get("parameters"))

    @property
    def not_repeated(self) -> tuple[str, ...]:
        """Fields of the body that the workspace does not repeat."""
        return tuple(sorted(set(self.body) - _REPEATED))

    def is_named_by(self, update: Mapping[str, Any]) -> bool:
        """Whether the workspace repeats the parameter that only this run has."""
        told, name = update.get("parameters"), self.run_parameter
        return bool(name) and isinstance(told, Mapping) and told.get(name) == self.body["parameters"][name]

    def _has_parameters(self, told: Any) -> bool:
        """Whether the update has our parameters; those that the pipeline itself brings do not matter."""
        if not isinstance(told, Mapping):
            return True
        ours = self.body.get("parameters") or {}
        return all(told.get(name) == value for name, value in ours.items())

    def for_job(self, job_id: int | str, token: str) -> dict[str, Any]:
        """The body of ``jobs/run-now`` for a pipeline that a job runs.

        :param job_id: the job.
        :param token: the same for all attempts: the workspace starts one run for it, however often it is sent.
        :raises RefusedError: a field that jobs do not pass on.
        """
        params = self._only(JOB_FIELDS, "jobs/run-now")
        return {"job_id": int(job_id), "pipeline_params": params, "idempotency_token": token}

    def as_task(self, pipeline_id: str) -> dict[str, Any]:
        """The ``pipeline_task`` of a job's task, as ``DatabricksSubmitRunOperator`` takes it.

        :raises RefusedError: a field that jobs do not pass on.
        """
        return {"pipeline_id": pipeline_id, **self._only(TASK_FIELDS, "pipeline_task")}

    def _only(self, fields: Sequence[str], where: str) -> dict[str, Any]:
        strange = sorted(set(self.body) - set(fields) - {"cause"})
        if strange:
            raise RefusedError(
                f"{where} has no field {strange[0]}", hint="start the pipeline itself, without job_id, or leave it out"
            )
        return {name: value for name, value in self.body.items() if name in fields}


def _check_kind(name: str, value: Any) -> None:
    if value is None:
        return
    if name in _FLAGS and not isinstance(value, bool):
        raise RefusedError(f"{name} is {value!r}", hint="give true or false")
    if name in _LISTS and not (isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)):
        raise RefusedError(f"{name} is {value!r}", hint="give a list of names")


def _set(value: Any) -> frozenset[str]:
    return frozenset(map(str, value or ()))
