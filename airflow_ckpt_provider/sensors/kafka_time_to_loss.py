"""Wait until Kafka is about to delete what a checkpoint still has to read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    conf,
)
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_ckpt_provider.errors import CkptError, NoSourceOfKindError, SourceError
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import mapping, required, text
from airflow_ckpt_provider.operators.guard_result import skip_if_absent
from airflow_ckpt_provider.operators.masking import MaskingOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.triggers.kafka_time_to_loss import (
    KafkaTimeToLossTrigger,
    is_due,
    look,
    not_known,
    seconds_left,
)
from airflow_ckpt_provider.units import parse_seconds

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaTimeToLossSensor(MaskingOperator, BaseSensorOperator):
    """Wait until the time to loss of a stream's resume point falls below a threshold, or records are lost already.

    Put the alarm downstream. The result is the report of the poll that fired, as ``KafkaRetentionGuardOperator`` has it.
    What counts is the partition with the least time: its lower bound, or the estimate if it has no bound.

    A stream that keeps up never lets it fire: then the sensor times out, or is skipped with ``soft_fail=True``. If its last poll
    did not show how much time is left, it fails, with ``soft_fail=True`` too: the broker does not answer, the verdict is
    ``UNKNOWN``, or of a partition with unread records the time cannot be determined.

    .. code-block:: python

        KafkaTimeToLossSensor(
            task_id="watch",
            checkpoint="s3://lake/checkpoints/orders",
            kafka_config_id="kafka_orders",
            threshold="6h",
            deferrable=True,
        )

    .. seealso:: :doc:`/howto/kafka-retention`

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``. (templated)
    :param source: position (``"0"``) or name of one source; ``None``: all Kafka sources. (templated)
    :param reader_options: options of the query's reader that say which topics it reads (``subscribePattern``, ``subscribe``,
        ``assign``), which no checkpoint records, or source -> options. (templated)
    :param isolation_level: the query's ``kafka.isolation.level``. (templated)
    :param threshold: fire when less than this is left, such as ``"6h"``. (templated)
    :param if_absent: ``"fail"`` where the query has no Kafka source, or ``"skip"`` the task: for one guard over streams of
        several kinds. A source of unknown kind is no reason to skip. (templated)
    :param poll_interval: seconds or a timedelta between two polls in every mode; ``poke_interval`` means the same.
    :param deferrable: wait in the triggerer, without a worker.
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "kafka_config_id",
        "source",
        "reader_options",
        "isolation_level",
        "threshold",
        "if_absent",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reader_options": "json"}
    stream_aliases: ClassVar[Mapping[str, str]] = {"reader_options": "kafka_reader_options"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        checkpoint: str | None = UNSET,
        checkpoint_conn_id: str | None = None,
        kafka_config_id: str = "kafka_default",
        source: str | int | None = None,
        reader_options: Mapping[str, Any] | None = None,
        isolation_level: str = "read_uncommitted",
        threshold: str = "6h",
        if_absent: str = "fail",
        poll_interval: timedelta | float = 60.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", poll_interval)
        super().__init__(**kwargs)
        self.checkpoint: str | None = self.needed(checkpoint, "checkpoint")
        self.checkpoint_conn_id = checkpoint_conn_id
        self.kafka_config_id = kafka_config_id
        self.source = source
        self.reader_options = reader_options
        self.isolation_level = isolation_level
        self.threshold = threshold
        self.if_absent = if_absent
        self.deferrable = deferrable
        self._unknown: str | None = None

    def execute(self, context: Context) -> Any:
        """Return the report of the poll that fired."""
        if not self.deferrable:
            try:
                return super().execute(context)
            except (AirflowSensorTimeout, AirflowSkipException) as e:
                self._fail_if_unknown(e)
                raise
        found = self.poke(context)
        if found.is_done:
            return found.xcom_value
        self.defer(
            trigger=KafkaTimeToLossTrigger(
                checkpoint=required(self.checkpoint, "checkpoint"),
                checkpoint_conn_id=text(self.checkpoint_conn_id),
                kafka_config_id=required(self.kafka_config_id, "kafka_config_id"),
                source=text(self.source),
                options=self._options(),
                threshold=self._threshold(),
                poll_interval=self.poke_interval,
                end_time=time.time() + self.timeout,
            ),
            method_name="execute_complete",
            # The trigger gives up by itself; this is for one that cannot.
            timeout=timedelta(seconds=self.timeout + 60),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        self._unknown = "the look failed"  # until it has not
        with no_retry_when_refused(), skip_if_absent(self.if_absent):
            try:
                report = look(
                    required(self.checkpoint, "checkpoint"),
                    text(self.checkpoint_conn_id),
                    required(self.kafka_config_id, "kafka_config_id"),
                    text(self.source),
                    self._options(),
                )
            except SourceError as e:
                self._unknown = str(e)
                self.log.warning("%s", e)
                return PokeReturnValue(is_done=False)
            due = is_due(report, self._threshold())
            self._unknown = not_known(report)
        self.log.info("%s: %s s left", report.verdict.value, seconds_left(report))
        return PokeReturnValue(is_done=due, xcom_value=report.to_json() if due else None)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Take what the trigger found."""
        if event["status"] == "timeout":
            if unknown := event.get("unknown"):
                raise self._failed(unknown)
            raise AirflowSensorTimeout(f"more than {self.threshold} was left all the time")
        if event["status"] == "error":
            # With soft_fail Airflow would skip the task of an AirflowException: as if more than the threshold had been left.
            raise CkptError(event["message"]) if self.soft_fail else AirflowFailException(event["message"])
        self.log.warning("%s: %s", event["report"]["verdict"], "; ".join(event["report"]["reasons"]))
        return event["report"]

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Take what the trigger found, or why it found nothing."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as e:
            self._fail_if_unknown(e)
            raise

    def _fail_if_unknown(self, ended: Exception) -> None:
        """A task that is skipped says that enough was left; whatever does not know that is a failure."""
        why = ended.__cause__
        if self.never_fail or isinstance(why, NoSourceOfKindError):
            return
        if isinstance(why, AirflowSensorTimeout) and why.__cause__ is not None:
            raise self._failed(f"the trigger did not answer within {self.timeout:g} s") from why
        if why is not None and not isinstance(why, AirflowSensorTimeout):
            raise why
        if self._unknown:
            raise self._failed(self._unknown) from ended

    def _failed(self, why: str) -> AirflowFailException:
        return AirflowFailException(
            f"UNKNOWN: whether Kafka keeps what {text(self.stream) or self.checkpoint} has not read for {self.threshold}: {why}\n"
            "HINT: see that the broker answers to the connection; `airflow-ckpt guard` asks it"
        )

    def _options(self) -> dict[str, Any]:
        return {
            "reader_options": mapping(self.reader_options, "reader_options"),
            "isolation_level": text(self.isolation_level),
        }

    def _threshold(self) -> float:
        return parse_seconds(required(self.threshold, "threshold"), field="threshold")
