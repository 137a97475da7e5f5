"""Histories of a table under several query ids; the judge is a model of Delta's own rule that replays the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.query_ids import QueryIdLink, QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.verdict import Verdict

A, B = "id-0", "id-1"


@dataclass
class Model:
    """A Delta table and the stream that writes it, by Delta's rule: a batch is skipped if it is not above the id's last ``txn``.

    A row is the number of its batch. The stream is whole if the table has each batch up to the newest exactly once.
    """

    commits: list[TableCommit] = field(default_factory=list)
    contents: list[Counter[int]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    ids: list[str] = field(default_factory=lambda: [A])
    current: str = A
    batch: int = -1

    def copy(self) -> Model:
        return Model(
            list(self.commits), list(self.contents), dict(self.memory), list(self.ids), self.current, self.batch
        )

    @property
    def rows(self) -> Counter[int]:
        return Counter(self.contents[-1]) if self.contents else Counter()

    @property
    def history(self) -> TableHistory:
        return TableHistory("/table", tuple(self.commits))

    @property
    def chain(self) -> QueryIds:
        return QueryIds(tuple(QueryIdLink(id_, "model") for id_ in self.ids)).starting_as(self.current)

    def run(self, batches: int = 1) -> Model:
        for _ in range(batches):
            self.batch += 1
            if self.memory.get(self.current, -1) < self.batch:
                txns = {self.current: self.batch}
                self._commit("STREAMING UPDATE", self.rows + Counter([self.batch]), txns, changes_data=True, rows=1)
        return self

    def new_id(self) -> Model:
        self.current = f"id-{len(self.ids)}"
        self.ids.append(self.current)
        return self

    def restore(self, version: int, txns: dict[str, int] | None = None) -> Model:
        self._commit("RESTORE", self.contents[version], txns or {}, changes_data=True, restored=version)
        return self

    def look(self, target: int, ids: QueryIds | None = None) -> SinkReport:
        return inspect_delta(self.history, ids or self.chain, target)

    def rewind(self, target: int, *, by_spark: bool = False, accept: bool = False, as_id: str | None = None) -> Model:
        """Go back as the package does: the sink first, then the checkpoint."""
        self.current = as_id or self.current
        report = self.look(target)
        if report.rollback and report.rollback.to_version is not None and not accept:
            txns = {**dict.fromkeys(report.memories, target), self.current: target}
            self.restore(report.rollback.to_version, {} if by_spark else txns)
            if by_spark:
                self.new_id()
        self.batch = target
        return self

    def _commit(self, operation: str, content: Counter[int], txns: dict[str, int], **more: Any) -> None:
        self.commits.append(TableCommit(len(self.commits), None, operation, txns, **more))
        self.contents.append(+content)
        self.memory |= txns


def whole(newest: int) -> Counter[int]:
    return Counter(range(newest + 1))


class TestOneAndTwoChanges:
    """The finding: batches 0 to 4 under one id, 5 and 6 under the next."""

    @pytest.mark.parametrize("target", range(7))
    @pytest.mark.parametrize("changes", [(5,), (3, 5), (5, 6)])
    def test_rolled_back_it_is_exact(self, changes: tuple[int, ...], target: int) -> None:
        model = Model()
        for batch in range(7):
            if batch in changes:
                model.new_id()
            model.run()
        report = model.look(target)
        assert report.query_ids == tuple(model.ids)
        assert (report.verdict is Verdict.SAFE) == (target == 6)
        assert report.rollback is None if target == 6 else report.rollback.batches == 6 - target  # type: ignore[union-attr]
        assert model.rewind(target).run(6 - target).rows == whole(6)
        assert model.look(6).verdict is Verdict.SAFE

    def test_the_newest_id_alone_cannot_roll_back_past_its_begin(self) -> None:
        """The control: judged by the newest id only, batches 3 and 4 would come twice."""
        model = Model().run(5).new_id().run(2)
        report = model.look(2, QueryIds.of(B))
        assert report.verdict is Verdict.WILL_SKIP
        assert report.rollback is None
        assert report.obstacle == (
            f"the first commit of the query {B} after batch 2 is batch 5, and no known id of the query explains batches 3 to 4, "
            f"though {A} wrote batches of these numbers: if the query had another id then, name it (--txn-app-id), or give the "
            "repository that has the records of the change (--repository)"
        )

    def test_a_new_id_that_has_written_nothing(self) -> None:
        model = Model().run(5).new_id()
        assert model.look(4).verdict is Verdict.SAFE
        report = model.look(2)
        assert (report.verdict, report.remembered, report.batch_id) == (Verdict.WILL_DUPLICATE, None, 4)
        assert "as batches of id-0, and the query's id will be id-1" in report.reasons[0]
        assert model.rewind(2).run(2).rows == whole(4)

    def test_every_id_forgets(self) -> None:
        """Whichever id the query has next, the table skips nothing that it does not have."""
        model = Model().run(5).new_id().run(2).rewind(2)
        assert model.memory == {A: 2, B: 2}
        model.current = A
        assert model.look(2).verdict is Verdict.SAFE
        assert model.run(4).rows == whole(6)

    @pytest.mark.parametrize("target", range(5))
    def test_back_to_a_backup_of_the_older_id(self, target: int) -> None:
        model = Model().run(5).new_id().run(2)
        model.current = A
        report = model.look(target)
        assert report.verdict is (Verdict.WILL_SKIP if target < 4 else Verdict.WILL_DUPLICATE)
        assert ("writes batches 5 to 6 beside the rows" in report.reasons[0]) == (target < 4)
        assert model.rewind(target).run(6 - target).rows == whole(6)

    def test_back_to_a_backup_of_the_older_id_after_spark_has_restored(self) -> None:
        """The table has forgotten nothing of the older id."""
        model = Model().run(5).rewind(2, by_spark=True)
        model.current = A
        report = model.look(2)
        assert (report.verdict, report.remembered) == (Verdict.WILL_SKIP, 4)
        assert model.rewind(2).run(3).rows == whole(5)

    def test_an_older_id_that_a_person_names(self) -> None:
        model = Model().run(5).new_id().run(2)
        report = model.look(2, QueryIds.of(B, app_id=A))
        assert (report.verdict, report.remembered, report.memories) == (Verdict.WILL_SKIP, 6, {A: 4})
        assert report.rollback is not None
        assert report.rollback.to_version == 2

    def test_a_query_of_other_numbers_took_its_place(self) -> None:
        model = Model().run(5).new_id()
        model.batch = -1
        model.run(2)
        ids = replace(QueryIds.of(A), successors=frozenset({B}))
        report = model.look(4, ids)
        assert report.verdict is Verdict.WILL_DUPLICATE
        assert report.rollback is not None
        assert (report.rollback.to_version, report.rollback.batches) == (4, 2)


class TestForeachBatch:
    """``txnAppId`` stays the same when the query id changes."""

    def test_it_is_judged_by_it(self) -> None:
        model = Model(ids=["totals"], current="totals").run(7)
        ids = QueryIds((QueryIdLink(A, "reset"), QueryIdLink(B, "metadata")), "totals")
        report = model.look(2, ids)
        assert ids.writes_as(model.history) == "totals"
        assert (report.verdict, report.remembered) == (Verdict.WILL_SKIP, 6)
        assert report.rollback is not None
        assert report.rollback.to_version == 2

    def test_batches_without_rows_leave_no_commit(self) -> None:
        model = Model(ids=["totals"], current="totals").run(3)
        model.batch += 2
        model.run(2)
        report = model.look(3, QueryIds.of(A, app_id="totals"))
        assert report.rollback is not None
        assert report.rollback.to_version == 2
        assert model.look(5, QueryIds.of(A, app_id="totals")).doubts == ()

    def test_first_written_directly(self) -> None:
        """The id that has written last is the one that the next start writes with."""
        model = Model().run(3)
        model.current = "totals"
        model.run(3)
        report = model.look(1, QueryIds.of(A, app_id="totals"))
        assert (report.verdict, report.remembered, report.memories) == (Verdict.WILL_SKIP, 5, {A: 2})


class TestWhatNothingExplains:
    def test_an_unknown_id_goes_on_where_the_stream_ends(self) -> None:
        model = Model().run(5).new_id().run(2)
        report = model.look(4, QueryIds.of(A))
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].startswith(f"{B} wrote batches 5 to 6 into the table, which continue where")
        assert report.rollback is None

    def test_another_stream_into_the_same_table(self) -> None:
        model = Model().run(3)
        for batch in range(5):
            model._commit("STREAMING UPDATE", model.rows, {"other": batch}, changes_data=True, rows=1)
        model.run(2)
        assert model.look(4).verdict is Verdict.SAFE
        assert model.look(2).rollback is not None

    def test_a_table_that_is_doubled(self) -> None:
        model = Model().run(5).new_id().rewind(2, accept=True).run(4)
        assert model.rows == Counter([0, 1, 2, 3, 3, 4, 4, 5, 6])
        assert model.look(6).verdict is Verdict.UNKNOWN
        assert model.look(6).reasons == (
            "the table has more than one commit of batches 3 to 4: their rows are doubled",
        )
        assert model.rewind(2).run(4).rows == whole(6)

    def test_batches_that_are_missing(self) -> None:
        model = Model().run(4).restore(1).run(1)
        assert model.look(4).verdict is Verdict.UNKNOWN
        assert (
            "the table has no commit of batches 2 to 3, though it has older and newer ones" in model.look(4).reasons[0]
        )
        report = model.look(3)
        assert report.rollback is not None
        assert "rows of batches 2 to 3 are missing" in report.doubts[0]

    def test_an_offline_repartition_writes_nothing(self) -> None:
        model = Model().run(3)
        model.batch += 1
        model.run(2)
        assert model.look(5).verdict is Verdict.UNKNOWN
        report = inspect_delta(model.history, model.chain, 5, unwritten=frozenset({3}))
        assert report.verdict is Verdict.SAFE

    def test_stored_reports_of_before(self) -> None:
        value = Model().run(2).look(0).to_json()
        for name in ("query_ids", "memories", "doubts"):
            value.pop(name)
        report = SinkReport.from_json(value)
        assert (report.query_ids, report.memories, report.doubts) == ((), {}, ())


@st.composite
def histories(draw: st.DrawFn) -> Model:
    """A stream's life: it runs, gets new ids, is rewound in every way, and others restore its table."""
    model = Model().run(draw(st.integers(1, 4)))
    for _ in range(draw(st.integers(0, 6))):
        step = draw(
            st.sampled_from(["run", "new id", "rewind", "by spark", "accept", "to backup", "restore", "foreign"])
        )
        target = draw(st.integers(0, max(model.batch, 0)))
        if step == "run":
            model.run(draw(st.integers(1, 3)))
        elif step == "new id":
            model.new_id()
        elif step == "rewind":
            model.rewind(target)
        elif step == "by spark":
            model.rewind(target, by_spark=True)
        elif step == "accept":
            model.rewind(target, accept=True)
        elif step == "to backup":
            model.rewind(target, as_id=draw(st.sampled_from(model.ids)))
        elif step == "foreign":
            model._commit("WRITE", model.rows, {}, changes_data=True, rows=0)
        else:
            model.restore(draw(st.integers(0, len(model.commits) - 1)))
    return model


def replayed(model: Model, target: int, newest: int) -> Counter[int]:
    again = model.copy()
    again.batch = target
    return again.run(newest - target).rows


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
@example(Model().run(5).new_id().run(2), None)
def test_safe_is_never_wrong(model: Model, data: st.DataObject | None) -> None:
    """SAFE as it is: the replay makes the table of a run that never failed. After a rollback without doubts: the same."""
    newest = model.batch + 2
    as_ids: Iterable[str] = model.ids if data is None else [data.draw(st.sampled_from(model.ids))]
    for model.current in as_ids:
        for target in range(model.batch + 1):
            report = model.look(target)
            if report.verdict is Verdict.SAFE:
                assert replayed(model, target, newest) == whole(newest), (target, report)
            if report.rollback and not report.doubts:
                rolled = model.copy().rewind(target)
                assert rolled.run(newest - target).rows == whole(newest), (target, report)
                by_spark = model.copy().rewind(target, by_spark=True)
                assert by_spark.run(newest - target).rows == whole(newest), (target, report)


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_safe_is_never_wrong_though_ids_are_unknown(model: Model, data: st.DataObject) -> None:
    """Where the records of some changes are lost: what is not explained is not SAFE, and not rolled back."""
    newest = model.batch + 2
    known = data.draw(st.sets(st.sampled_from(model.ids))) | {model.current}
    ids = replace(model.chain, links=tuple(link for link in model.chain.links if link.query_id in known))
    for target in range(model.batch + 1):
        report = model.look(target, ids)
        if report.verdict is Verdict.SAFE:
            assert replayed(model, target, newest) == whole(newest), (target, report)
        if report.rollback and report.rollback.to_version is not None and not report.doubts:
            rolled = model.copy()
            rolled.restore(
                report.rollback.to_version, {**dict.fromkeys(report.memories, target), model.current: target}
            )
            rolled.batch = target
            assert rolled.run(newest - target).rows == whole(newest), (target, report)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_what_the_verdict_says_happens(model: Model) -> None:
    for target in range(model.batch + 1):
        report = model.look(target)
        skipped = model.memory.get(model.current, -1) > target
        assert skipped == (report.verdict is Verdict.WILL_SKIP)
        assert report.remembered == model.memory.get(model.current)
