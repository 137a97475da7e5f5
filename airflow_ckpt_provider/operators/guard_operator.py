"""What the operators that ask about the sources of a query have in common: which query, and what is demanded of its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, text
from airflow_ckpt_provider.operators.guard_result import REACTIONS
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.units import parse_seconds

if TYPE_CHECKING:
    from airflow_ckpt_provider.guards.query import GuardedQuery
    from airflow_ckpt_provider.guards.registry import GuardSettings


class GuardOperator(CheckpointOperator, StreamOperator):
    """Base of the guards. The result is the report, as a dictionary and key by key; it is pushed before the task fails, too.

    Parameters of the query: see :class:`~.place_operators.CheckpointOperator` (leave ``checkpoint`` out to ask about a backup)
    and :class:`~.place_operators.StreamOperator` (backups of the stream know what its sources were; without a checkpoint, the
    backup itself is asked about).

    :param backup_id: which backup; ``None``: the newest. (templated)
    :param max_downtime: how long the stream will be down from now on, such as ``"24h"``. (templated)
    :param buffer: margin after that. (templated)
    :param fail_on_data_loss: ``failOnDataLoss`` of the query's sources, which no checkpoint records. (templated)
    :param on_finding: ``"fail"`` the task on a verdict other than ``SAFE``, or ``"warn"``. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        "backup_id",
        "max_downtime",
        "buffer",
        "fail_on_data_loss",
        "on_finding",
    )
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        repository: str | None = None,
        backup_id: str | None = None,
        max_downtime: str | None = None,
        buffer: str = "1h",
        fail_on_data_loss: bool | str = True,
        on_finding: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(checkpoint=checkpoint, repository=repository, **kwargs)
        self.backup_id = backup_id
        self.max_downtime = max_downtime
        self.buffer = buffer
        self.fail_on_data_loss = fail_on_data_loss
        self.on_finding = on_finding

    def _reaction(self) -> str:
        return one_of(self.on_finding, "on_finding", REACTIONS)

    def _query(self, offsets: str | Mapping[str, Any] | None = None) -> GuardedQuery:
        from airflow_ckpt_provider.upgrade.preflight import query_to_guard

        name, stream = text(self.name), self.declared_stream()
        return query_to_guard(
            checkpoint=self._checkpoint_place() if text(self.checkpoint) else None,
            repository=self._given_repository(),
            name=name,
            backup_id=text(self.backup_id),
            offsets=offsets,
            name_is_declared=stream is not None and name == stream.repository_name,
        )

    def _settings(self, options: Mapping[str, Mapping[str, Any]]) -> GuardSettings:
        from airflow_ckpt_provider.guards.registry import GuardSettings

        downtime = text(self.max_downtime)
        return GuardSettings(
            fail_on_data_loss=flag(self.fail_on_data_loss, "fail_on_data_loss", empty=True),
            max_downtime=parse_seconds(downtime, field="max_downtime") if downtime else None,
            buffer=parse_seconds(text(self.buffer) or "0", field="buffer") if downtime else 0.0,
            options={kind: mapping(values, f"options[{kind!r}]") for kind, values in options.items()},
        )
