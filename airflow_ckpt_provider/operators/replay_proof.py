"""Prove that a replay ran every batch once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.operators.fields import required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReplayProofOperator(CheckpointOperator, StreamOperator, SinkOperator):
    """See whether a replay ran every batch once: none missing in the logs, each once in a Delta sink. Fails where not.

    Parameters of places and sink, as for the rewind: see :class:`~.place_operators.CheckpointOperator`,
    :class:`~.place_operators.StreamOperator` (the repository knows the older ids of the query; ``None``:
    ``<checkpoint>.rewinds``) and :class:`~.sink_operator.SinkOperator`.

    .. code-block:: python

        ReplayProofOperator(
            task_id="prove",
            checkpoint="s3://lake/checkpoints/orders",
            sink="s3://lake/tables/orders",
            batch_id=41,  # the batch that was rewound to
        )

    .. seealso:: :doc:`/howto/rewind`

    :param batch_id: the batch that was rewound to. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        *SinkOperator.template_fields,
        "batch_id",
    )
    ui_color = "#dae8fc"

    def __init__(self, *, batch_id: int | str, repository: str | None = None, **kwargs: Any) -> None:
        super().__init__(repository=repository, **kwargs)
        self.batch_id = batch_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the proof; fail where something is not as it has to be."""
        with no_retry_when_refused():
            batch_id = whole_number(required(self.batch_id, "batch_id"), "batch_id") or 0
            checkpoint = self._checkpoint()
            repository = self._repository_beside(checkpoint.location)
            proof = prove_replay(checkpoint, batch_id, sink=self._sinks(), repository=repository, name=text(self.name))
        self.log.info("\n%s", proof.to_markdown())
        if not proof.ok:
            raise AirflowFailException("\n".join(["the replay is not as it has to be", *proof.findings]))
        return proof.to_json()
