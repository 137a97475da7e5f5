"""See before a deployment whether new code can continue from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import one_of, required, text
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription

#: ``fail_on`` -> the verdicts at which the task fails.
_FAILS_ON = {"forbidden": (Verdict.WILL_FAIL,), "unknown": (Verdict.WILL_FAIL, Verdict.UNKNOWN)}


class CompatibilityOperator(CheckpointOperator):
    """Compare a checkpoint with the description of new code; reads only, and needs no Spark.

    The description is made by ``airflow_ckpt_provider.jobs.describe_query``. The result is the comparison (``verdict``,
    ``reasons``, ``changes``) and ``markdown`` for an approval form, as a dictionary and key by key; it is pushed before the task
    fails, too.

    Parameters of the checkpoint: see :class:`~.place_operators.CheckpointOperator`.

    .. code-block:: python

        CompatibilityOperator(
            task_id="compatible",
            checkpoint="s3://lake/checkpoints/orders",
            description="s3://lake/descriptions/orders-v2.json",
            old_description="s3://lake/descriptions/orders-v1.json",
        )

    .. seealso:: :doc:`/howto/rehearse`

    :param description: URI of the description of the new code. (templated)
    :param old_description: URI of the description of the code that wrote the checkpoint, which shows what no checkpoint holds;
        ``None``: there is none. (templated)
    :param description_conn_id: Airflow connection to reach the descriptions; ``None``: the environment's own
        credentials. (templated)
    :param fail_on: ``"forbidden"``: the task fails where Spark refuses; ``"unknown"``: also where Spark does not look or it
        cannot be determined; ``None``: never. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "description",
        "old_description",
        "description_conn_id",
        "fail_on",
    )
    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        description: str,
        old_description: str | None = None,
        description_conn_id: str | None = None,
        fail_on: str | None = "forbidden",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.description = description
        self.old_description = old_description
        self.description_conn_id = description_conn_id
        self.fail_on = fail_on

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the comparison; fail where it says so."""
        from airflow_ckpt_provider.upgrade.compatibility.compatibility import compare

        with no_retry_when_refused():
            fails_on = _FAILS_ON[one_of(self.fail_on, "fail_on", tuple(_FAILS_ON))] if text(self.fail_on) else ()
            old = text(self.old_description)
            found = compare(
                self._checkpoint(),
                self._described(required(self.description, "description")),
                before=self._described(old) if old else None,
            )
            result = {**found.to_json(), "markdown": found.to_markdown()}
            tell = self.log.info if found.verdict is Verdict.SAFE else self.log.warning
            tell("%s", result["markdown"])
            if found.verdict in fails_on:
                if "ti" in context:
                    context["ti"].xcom_push(key="report", value=result)
                raise RefusedError(
                    f"{found.verdict.value}: {found.build} on {found.checkpoint}: {'; '.join(found.reasons)}",
                    hint="the comparison is in the log and in the XCom `report`; fail_on says what fails",
                )
        return result

    def _described(self, uri: str) -> QueryDescription:
        from airflow_ckpt_provider.places import open_place
        from airflow_ckpt_provider.upgrade.compatibility.description import parse_description

        directory, _, name = uri.rpartition("/")
        try:
            data = open_place(directory or ".", text(self.description_conn_id)).read(name)
        except FileNotFoundError as e:
            raise RefusedError(
                f"{uri} does not exist", hint="make it with the job airflow_ckpt_provider/jobs/describe_query.py"
            ) from e
        return parse_description(data, path=uri)
