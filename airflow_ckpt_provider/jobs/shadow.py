"""The new code beside production: each batch that production has committed is run again over the same offsets, and compared."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.poll import list_logs
from airflow_ckpt_provider.jobs.table_batches import TableBatches
from airflow_ckpt_provider.jobs.trial import NO_ROWS, Trial, difference
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.upgrade.rehearsal.plans import keep_plans
from airflow_ckpt_provider.upgrade.rehearsal.report import Followed, RowDifference, combine
from airflow_ckpt_provider.upgrade.rehearsal.scratch import plan_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY = 1.0

#: Runs one planned batch into a trial, within so many seconds.
RunBatch = Callable[[int, Trial, int], None]
#: Drops the rows that were kept of a batch.
DropRows = Callable[[int], None]


@dataclass
class Shadow:
    """The new code on its way after production.

    :param spark: a session to compare with.
    :param table: what production wrote.
    :param production: its checkpoint; only read.
    :param place: the scratch checkpoint of the new code.
    :param plans: a scratch place for production's plans.
    :param run_batch: runs a batch that is planned in ``place``.
    :param drop_rows: called once a batch is compared.
    """

    spark: SparkSession
    table: TableBatches
    production: Location
    place: Location
    plans: Location
    run_batch: RunBatch
    drop_rows: DropRows
    trial: Trial = field(default_factory=Trial)
    compared: dict[int, RowDifference] = field(default_factory=dict)

    def follow(
        self, *, after: int, batches: int, timeout: float, idle: float, stop_at_difference: bool
    ) -> tuple[RowDifference, Followed]:
        """Follow production until it is caught up with, or the time is over.

        :param after: the batch that the scratch checkpoint was restored at.
        :param batches: how many are compared at least.
        :param timeout: seconds for all of it.
        :param idle: seconds without a new batch after which production has stopped.
        :param stop_at_difference: end at the first batch whose rows differ.
        :return: the difference over all batches, and how far it came.
        :raises RefusedError: production has cleaned up a plan that is still needed, or was rewound.
        """
        began = moved = time.monotonic()
        done, newest, ended = after, after, ""
        while not ended:
            seen = keep_plans(self.production, self.plans, after=done)
            now = time.monotonic()
            if seen != newest:
                newest, moved = seen, now
            left = began + timeout - now
            if left <= 0:
                ended = "timeout"
            elif done < newest:
                ended = self._next(done + 1, int(left) + 1, newest, stop_at_difference=stop_at_difference)
                done += done + 1 in self.compared
            elif len(self.compared) >= batches:
                ended = "level"
            elif now - moved >= idle:
                ended = "idle"
            else:
                time.sleep(min(_LOOK_EVERY, left))
        differing = tuple(b for b, part in self.compared.items() if not part.equal and part.not_compared != NO_ROWS)
        at_the_end = list_logs(self.production).latest_committed
        seconds = round(time.monotonic() - began, 3)
        return combine(self.table.uri, self.compared, NO_ROWS), Followed(
            after + 1, done, len(self.compared), max(newest, at_the_end or 0), ended, seconds, differing
        )

    def _next(self, batch: int, seconds: int, newest: int, *, stop_at_difference: bool) -> str:
        plan_as(self.place, self.plans, batch)
        self.run_batch(batch, self.trial, seconds)
        if self.trial.failure:
            if self.trial.failure.code != "TIMEOUT":
                return "failed"
            self.trial.failure = None  # a batch under way when the time is over is no fault of the code's
            return "timeout"
        part = self._compare(batch)
        self.compared[batch] = part
        self.drop_rows(batch)
        ran = next((b for b in reversed(self.trial.batches) if b.batch_id == batch), None)
        equal = part.equal or part.not_compared == NO_ROWS
        said = "equal" if equal else str(part)
        rows, took = (ran.output_rows, ran.seconds) if ran else (None, None)
        print(
            f"batch {batch}: {said}, {rows} rows, {took} s, {newest - batch} behind production",
            file=sys.stderr,
            flush=True,
        )
        return "difference" if stop_at_difference and not equal else ""

    def _compare(self, batch: int) -> RowDifference:
        if batch not in self.trial.rows:
            return RowDifference(self.table.uri, (batch,), not_compared=f"the new code did not run batch {batch}")
        if not self.table.has(batch):
            return RowDifference(
                self.table.uri, (batch,), not_compared=f"the table's log has no commit of batch {batch}"
            )
        return difference(self.spark, self.table.rows_of, self.trial, [batch], against=self.table.uri)
