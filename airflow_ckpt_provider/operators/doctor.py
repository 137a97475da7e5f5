"""Diagnose a checkpoint, and repair it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.advisor.surface import for_operators
from airflow_ckpt_provider.checkpoint.doctor.undecided import Undecided
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.operators.change_operator import PLAN, StoppingOperator
from airflow_ckpt_provider.operators.fields import flag, one_of, text
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.recovery.repair.apply import stop_plan_and_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.findings import Finding
    from airflow_ckpt_provider.recovery.repair.plan import RepairPlan

#: ``fail_on`` -> the severities at which the task fails.
_FAILS_ON = {
    "silent": (Severity.SILENT,),
    "error": (Severity.SILENT, Severity.ERROR),
    "warning": (Severity.SILENT, Severity.ERROR, Severity.WARNING),
}


class CheckpointDoctorOperator(StoppingOperator, CheckpointOperator, StreamOperator):
    """Say what is wrong with a checkpoint, and what Spark will do because of it. Repairs only if asked to.

    The result: ``findings``, ``unknown`` (gaps that are damage or not, which no file shows: the task does not fail for them),
    ``advice`` (what works and will hurt later), and with ``repair`` the ``plan`` (JSON), ``markdown``
    (for an approval form) and ``outcome`` (``None`` when only planned), as a dictionary and key by key. The task fails,
    without retries, where findings are left that no repair fixes; the findings are pushed before (XCom key ``findings``).

    The repair is the minimal cut: the newest batch for which everything exists, reached by the fewest removals, or by
    fetching what is missing from a backup, which loses nothing. It is carried out under the seal. Files that it removes or
    replaces are set aside before. A retry resumes where the previous attempt was stopped.

    Parameters of places and change: see :class:`~.place_operators.CheckpointOperator`,
    :class:`~.place_operators.StreamOperator` (missing files are fetched from the repository's backups, and it keeps what is
    removed; ``None``: nothing is fetched, and it is kept in ``<checkpoint>.repairs``) and
    :class:`~.change_operator.StoppingOperator`.

    .. code-block:: python

        CheckpointDoctorOperator(
            task_id="doctor",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            repair=True,  # plans a repair; mode="apply" applies it
        )

    .. seealso:: :doc:`/howto/doctor`, :doc:`/howto/repair`

    :param repair: plan a repair too, and apply it with ``mode="apply"``. (templated)
    :param query_id: id of the query, where the file ``metadata`` is lost. (templated)
    :param fail_on: the least severity of a finding for which the task fails: ``"silent"`` (rows would be lost, doubled or wrong),
        ``"error"`` (or Spark would not start), ``"warning"`` (anything); ``None``: never. (templated)
    :param contents: read state files to find damage in them. (templated)
    :param target: name or path of the table that the query writes to, for the advice; ``None``: not known. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        *StoppingOperator.template_fields,
        "repair",
        "query_id",
        "fail_on",
        "contents",
        "target",
    )
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        repository: str | None = None,
        repair: bool | str = False,
        query_id: str | None = None,
        fail_on: Literal["silent", "error", "warning"] | str | None = "error",
        contents: bool | str = True,
        target: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(repository=repository, **kwargs)
        self.repair = repair
        self.query_id = query_id
        self.fail_on = fail_on
        self.contents = contents
        self.target = target

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the findings and, where asked for, the plan of the repair and its outcome."""
        with no_retry_when_refused():
            mode = self._mode()
            fails_on = self._fails_on()
            checkpoint = self._checkpoint()
            contents = flag(self.contents, "contents", empty=True)
            found = checkpoint.diagnose(contents=contents)
            undecided = checkpoint.undecided()
            self._log(checkpoint, found, undecided)
            result: dict[str, Any] = {
                "checkpoint": checkpoint.location.uri,
                "findings": [finding.to_json() for finding in found],
                "unknown": [each.to_json() for each in undecided],
                "advice": [finding.to_json() for finding in self._advice(checkpoint)],
            }
            left = [finding for finding in found if finding.severity in fails_on]
            if not flag(self.repair, "repair"):
                self._fail(context, result, left)
                return result
            repository = self._given_repository()

            def plan(seal_id: str | None) -> RepairPlan:
                made = plan_repair(
                    checkpoint,
                    repository=repository,
                    name=text(self.name),
                    query_id=text(self.query_id),
                    contents=contents,
                    seal_id=seal_id,
                )
                result.update(self._shown(made))
                return made

            if mode == PLAN:
                if not plan(None).repairable:
                    self._fail(context, result, left)
                return result
            try:
                _, outcome = stop_plan_and_repair(
                    checkpoint,
                    plan,
                    repository=repository,
                    accept=self._accepted(),
                    **self._how(checkpoint.location, context),
                )
            except RefusedError:
                if result.get("plan", {"repairable": True})["repairable"]:
                    raise
                self._fail(context, result, left)  # it cannot be repaired
                return result
        self.log.info("%s continues after batch %d", checkpoint.location, outcome.batch_id)
        return self._carried_out({**result, "outcome": outcome.to_json()}, context)

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

    def _log(self, checkpoint: Checkpoint, found: Sequence[Finding], undecided: Sequence[Undecided]) -> None:
        if not found and not undecided:
            self.log.info("%s shows no known damage", checkpoint.location)
        for each in undecided:
            self.log.warning("UNKNOWN %s: %s\nRemedy: %s", each.path, each.message, for_operators(each.remedy))
        for finding in found:
            json = finding.to_json()
            self.log.warning(
                "%s %s: %s\nSpark: %s\nRemedy: %s",
                finding.severity.value.upper(),
                finding.kind.code,
                finding.message,
                json["effect"],
                for_operators(json["remedy"]),
            )

    def _fail(self, context: Context, result: dict[str, Any], found: Sequence[Finding]) -> None:
        if not found:
            return
        if "ti" in context:  # a failed task has no result, so that whoever looks into the failure finds it
            context["ti"].xcom_push(key="findings", value=result["findings"])
        worst = found[0].to_json()
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise AirflowFailException(
            f"{result['checkpoint']}: {worst['code']}, {worst['message']}{more}\nHINT: {for_operators(worst['remedy'])}"
        )
