"""Repositories as a whole: check one, copy it to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.backup.copy import copy_backups, to_copy
from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.trust import check_trust
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.lineage.runs import of_copy
from airflow_ckpt_provider.operators.fields import flag, required, text
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.progress_log import ProgressLog
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage.packs import WITHOUT_RECORD
from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow.sdk import Context

ALL = "all"
#: Findings named in the error; the report has all of them.
_SHOWN = 10


class CheckpointRepositoryCheckOperator(StreamOperator):
    """Compare all backups of a repository with the objects that are there; listings only, unless ``trust`` is true.

    A damaged backup, and with ``trust`` whatever is not proven, fails the task without retries; the report is the task's result
    in either case.

    Parameters: see :class:`~.place_operators.StreamOperator` (``name``: only this stream).

    .. code-block:: python

        CheckpointRepositoryCheckOperator(
            task_id="check",
            repository="s3://backups/streams",
        )

    .. seealso:: :doc:`/howto/prune`, and :doc:`/howto/signing` for ``trust`` and ``pin``

    :param trust: also report what is signed, and gaps in the audit records and in the numbers of backups. (templated)
    :param pin: what an earlier run has pushed as the XCom ``pin``, as a dictionary or JSON: a newest backup that has disappeared
        since is a finding. Empty or ``null``: there is none yet. A run with ``trust`` pushes the next one. (templated)
    """

    template_fields: Sequence[str] = (*StreamOperator.template_fields, "trust", "pin")
    ui_color = "#dae8fc"

    def __init__(self, *, trust: bool | str = False, pin: Mapping[str, Any] | str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("multiple_outputs", False)
        super().__init__(**kwargs)
        self.trust = trust
        self.pin = pin

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; fail where a backup is damaged."""
        with no_retry_when_refused():
            repository = self._open_repository()
            report = check_repository(repository, name=text(self.name))
            trust = check_trust(repository, pin=_pin(self.pin)) if flag(self.trust, "trust", empty=True) else None
        result = report.to_json() | ({"trust": trust.to_json()} if trust else {})
        if trust and "ti" in context:
            context["ti"].xcom_push(key="pin", value=dict(trust.pin))
        unproven = trust.findings if trust else ()
        if report.ok and not unproven:
            self.log.info("All %d backups are whole", sum(s.backups for s in report.streams))
            return result
        if "ti" in context:
            # A task that fails has no result of its own accord, and this one is for whoever is informed of the failure.
            context["ti"].xcom_push(key="return_value", value=result)
        found = [f"{d.name} {d.backup_id}: {d.problems[0]}" for d in report.damaged]
        unreadable = [words for stream in report.streams for words in stream.unreadable]
        lines = [
            *_shown(f"{repository.location} has {len(found)} damaged backups", found),
            *_shown(f"{repository.location} has {len(unreadable)} records that cannot be read", unreadable),
            *_shown(f"{repository.location}: {len(unproven)} findings on what is proven", unproven),
        ]
        if found:
            lines.append(
                "HINT: `airflow-ckpt repair REPOSITORY CHECKPOINT` rebuilds what the live checkpoint still has"
            )
        if unreadable:
            lines.append(f"HINT: {WITHOUT_RECORD}")
        raise AirflowFailException("\n".join(lines))


def _shown(title: str, lines: Sequence[str]) -> list[str]:
    """The title and the first lines; nothing where there are none."""
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [title, *lines[:_SHOWN], *more] if lines else []


def _pin(value: Mapping[str, Any] | str | None) -> object:
    """The field ``pin``; a template makes a text of it."""
    if not isinstance(value, str):
        return value or None
    try:
        return load_rendered(value) if text(value) else None
    except ValueError as e:
        raise RefusedError(f"pin is no JSON: {e}", hint="use the filter tojson in the template") from e


class CheckpointCopyOperator(StreamOperator):
    """Copy backups into another repository, as in a second region; every content is compared with its hash on the way.

    What the target has already is not copied again, so a retry resumes where the previous attempt was stopped.

    Parameters of the repository that has them: see :class:`~.place_operators.StreamOperator`.

    .. code-block:: python

        CheckpointCopyOperator(
            task_id="copy",
            repository="s3://backups/streams",
            target="s3://elsewhere/backups",
            backup_id="all",
        )

    .. seealso:: :doc:`/howto/copy`, and :doc:`/howto/permissions` for the rights it needs

    :param target: URI of the repository that gets them. (templated)
    :param target_conn_id: Airflow connection to reach the target; ``None``: the environment's own credentials. (templated)
    :param backup_id: id of a backup, ``"latest"`` or ``"all"``. (templated)
    :param create: make the target if its place is empty. Without it, a place that holds no repository is refused. (templated)
    :param workers: files copied at the same time.
    """

    template_fields: Sequence[str] = (
        *StreamOperator.template_fields,
        "target",
        "target_conn_id",
        "backup_id",
        "create",
    )
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        target: str,
        target_conn_id: str | None = None,
        backup_id: str = LATEST,
        create: bool | str = False,
        workers: int = WORKERS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.target_conn_id = target_conn_id
        self.backup_id = backup_id
        self.create = create
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what is in the target now."""
        with no_retry_when_refused():
            source = self._open_repository()
            wanted, name = required(self.backup_id, "backup_id"), text(self.name)
            manifests = to_copy(source, name) if wanted == ALL else [source.manifest(wanted, name=name)]
            opened = Repository.open_or_create if flag(self.create, "create") else Repository.open
            target = opened(self.opened(open_place(required(self.target, "target"), text(self.target_conn_id))))
            copied = copy_backups(
                source,
                target,
                manifests,
                made_by=made_by(context),
                workers=self.workers,
                on_progress=ProgressLog(self.log, "Copied"),
            )
        self.log.info(
            "%s holds %d backups: %d were there, %s copied now",
            target.location,
            len(copied),
            sum(c.already_there for c in copied),
            format_size(sum(c.copied_bytes for c in copied)),
        )
        result = {
            "repository": source.location.uri,
            "target": target.location.uri,
            "backups": [c.to_json() for c in copied],
        }
        self.note(of_copy, result, self.places)
        return result
