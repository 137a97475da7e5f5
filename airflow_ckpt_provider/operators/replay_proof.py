"""Prove that a replay ran every batch once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.fields import required, text, whole_number
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReplayProofOperator(SinkOperator):
    """Look whether a replay ran every batch once: none missing in the logs, each once in a Delta sink. Fails where not.

    .. seealso:: :doc:`/howto/rewind`

    :param checkpoint: URI of the checkpoint. (templated)
    :param batch_id: the batch that was gone back to. (templated)
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint. (templated)
    :param sink: what the query writes to. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param txn_app_id: as for the rewind. (templated)
    :param repository: URI of the repository that knows the older ids of the query; ``None``: ``<checkpoint>.rewinds``.
        (templated)
    :param repository_conn_id: Airflow connection to reach the repository. (templated)
    :param name: name of the stream in the repository; ``None``: last segment of the checkpoint. (templated)
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "batch_id",
        "checkpoint_conn_id",
        "sink",
        "sink_conn_id",
        "txn_app_id",
        "repository",
        "repository_conn_id",
        "name",
    )
    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        checkpoint: str,
        batch_id: int | str,
        checkpoint_conn_id: str | None = None,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        txn_app_id: str | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.batch_id = batch_id
        self.checkpoint_conn_id = checkpoint_conn_id
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.txn_app_id = txn_app_id
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.sink_options = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the proof; fail where something is not as it has to be."""
        with no_retry_when_refused():
            batch_id = whole_number(required(self.batch_id, "batch_id"), "batch_id") or 0
            checkpoint = self._checkpoint()
            repository = self._repository(checkpoint)
            proof = prove_replay(checkpoint, batch_id, sink=self._sink(), repository=repository, name=text(self.name))
        self.log.info("\n%s", proof.to_markdown())
        if not proof.ok:
            raise AirflowFailException("\n".join(["the replay is not as it has to be", *proof.findings]))
        return proof.to_json()
