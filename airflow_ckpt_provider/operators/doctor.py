"""Diagnose a checkpoint, and repair it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.restore import APPLY, PLAN
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.findings import Finding
    from airflow_ckpt_provider.recovery.repair.plan import RepairPlan

#: ``fail_on`` -> the severities at which the task fails.
_FAILS_ON = {
    "silent": (Severity.SILENT,),
    "error": (Severity.SILENT, Severity.ERROR),
    "warning": (Severity.SILENT, Severity.ERROR, Severity.WARNING),
}


class CheckpointDoctorOperator(BaseOperator):
    """Say what is wrong with a checkpoint, and what Spark will do because of it. Repairs only if told to.

    The result: ``findings``, ``advice`` (what works and will hurt later), and with ``repair`` the ``plan`` (JSON), ``markdown``
    (for an approval form) and ``outcome`` (``None`` when only planned), as a dictionary and key by key. The task fails,
    without retries, where findings are left that no repair mends; the findings are pushed before (XCom key ``findings``).

    The repair is the minimal cut: the newest batch for which everything exists, reached by the fewest removals, or by
    fetching what is missing from a backup, which loses nothing. It is carried out under the seal, what goes is set aside; a
    retry goes on where the attempt before was stopped.

    .. seealso:: :doc:`/howto/doctor`

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param repair: plan a repair too, and carry it out with ``mode="apply"``. (templated)
    :param mode: ``"plan"`` changes nothing, ``"apply"`` repairs. (templated)
    :param repository: URI of the repository whose backups missing files are fetched from, and that keeps what goes; ``None``:
        nothing is fetched, and it is kept beside the checkpoint, in ``<checkpoint>.repairs``. (templated)
    :param repository_conn_id: Airflow connection to reach the repository. (templated)
    :param name: name of the stream in the repository; ``None``: last segment of the checkpoint. (templated)
    :param query_id: id of the query, where the file ``metadata`` is lost. (templated)
    :param fail_on: the least severity of a finding for which the task fails: ``"silent"`` (rows would be lost, doubled or wrong),
        ``"error"`` (or Spark would not start), ``"warning"`` (anything); ``None``: never. (templated)
    :param fingerprint: fingerprint of the plan that was shown and approved: apply is refused if it would do something else
        now. ``None``: not compared. (templated)
    :param reason: why, for the audit record. (templated)
    :param contents: read state files to find damage in them. (templated)
    :param target: name or path of the table that the query writes to, for the advice; ``None``: not known. (templated)
    :param quiet_for: seconds for which nobody may have written to a checkpoint that is repaired.
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "repair",
        "mode",
        "repository",
        "repository_conn_id",
        "name",
        "query_id",
        "fail_on",
        "fingerprint",
        "reason",
        "contents",
        "target",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md"}
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        checkpoint: str,
        checkpoint_conn_id: str | None = None,
        repair: bool | str = False,
        mode: Literal["plan", "apply"] | str = PLAN,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        query_id: str | None = None,
        fail_on: Literal["silent", "error", "warning"] | str | None = "error",
        fingerprint: str | None = None,
        reason: str | None = None,
        contents: bool | str = True,
        target: str | None = None,
        quiet_for: float = 5.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id
        self.repair = repair
        self.mode = mode
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.query_id = query_id
        self.fail_on = fail_on
        self.fingerprint = fingerprint
        self.reason = reason
        self.contents = contents
        self.target = target
        self.quiet_for = quiet_for

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the findings and, where asked for, the plan of the repair and its outcome."""
        with no_retry_when_refused():
            mode = one_of(self.mode, "mode", (PLAN, APPLY))
            fails_on = self._fails_on()
            checkpoint = Checkpoint.at(
                open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id))
            )
            contents = flag(self.contents, "contents")
            found = checkpoint.diagnose(contents=contents)
            self._log(checkpoint, found)
            result: dict[str, Any] = {
                "checkpoint": checkpoint.location.uri,
                "findings": [finding.to_json() for finding in found],
                "advice": [finding.to_json() for finding in self._advice(checkpoint)],
            }
            if not flag(self.repair, "repair"):
                self._fail(context, result, [f for f in found if f.severity in fails_on])
                return result
            given = text(self.repository)
            repository = Repository.open(open_place(given, text(self.repository_conn_id))) if given else None
            plan = plan_repair(
                checkpoint,
                repository=repository,
                name=text(self.name),
                query_id=text(self.query_id),
                contents=contents,
            )
            markdown = plan.to_markdown()
            self.log.info("\n%s", markdown)
            result |= {"mode": mode, "plan": plan.to_json(), "markdown": markdown, "outcome": None}
            if not plan.repairable:
                self._fail(context, result, [f for f in found if f.severity in fails_on])
                return result
            if mode == PLAN:
                self.log.info("Nothing was changed: this is a plan. Run with mode=apply to carry it out.")
                return result
            self._check_fingerprint(plan)
            outcome = apply_repair(
                plan,
                checkpoint,
                repository=repository,
                quiet_for=self.quiet_for,
                made_by=made_by(context),
                reason=text(self.reason) or "",
            )
        self.log.info("%s goes on after batch %d", checkpoint.location, outcome.batch_id)
        return {**result, "outcome": outcome.to_json()}

    def _advice(self, checkpoint: Checkpoint) -> tuple[Finding, ...]:
        """What works and will hurt later; none where the checkpoint cannot be read well enough to say."""
        try:
            return checkpoint.advise(target=text(self.target))
        except CkptError as e:
            self.log.info("No advice: %s", e.message)
            return ()

    def _fails_on(self) -> tuple[Severity, ...]:
        if text(self.fail_on) is None:
            return ()
        return _FAILS_ON[one_of(self.fail_on, "fail_on", tuple(_FAILS_ON))]

    def _log(self, checkpoint: Checkpoint, found: Sequence[Finding]) -> None:
        if not found:
            self.log.info("%s shows no known damage", checkpoint.location)
        for finding in found:
            json = finding.to_json()
            self.log.warning(
                "%s %s: %s\nSpark: %s\nRemedy: %s",
                finding.severity.value.upper(),
                finding.kind.code,
                finding.message,
                json["effect"],
                json["remedy"],
            )

    def _fail(self, context: Context, result: dict[str, Any], found: Sequence[Finding]) -> None:
        if not found:
            return
        if "ti" in context:  # a failed task has no result, so that whoever looks into the failure finds it
            context["ti"].xcom_push(key="findings", value=result["findings"])
        worst = found[0].to_json()
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise AirflowFailException(
            f"{result['checkpoint']}: {worst['code']}, {worst['message']}{more}\nHINT: {worst['remedy']}"
        )

    def _check_fingerprint(self, plan: RepairPlan) -> None:
        """Refuse where the plan is not the one that was shown; one that was begun is gone on with."""
        shown = text(self.fingerprint)
        if shown in (None, plan.plan_fingerprint) or plan.already_done or plan.continued:
            return
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.plan_fingerprint}): "
            f"{plan.checkpoint} has changed since; nothing was changed",
            hint="look at a new plan, and apply that",
        )
