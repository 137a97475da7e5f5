"""Several sinks of one query: one plan over all of them, carried out and undone together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.way_back import SINK_UNKNOWN, dry_run
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.file_sinks import file_sink
from tests.support.iceberg_tables import Table
from tests.support.restores import loud_seal
from tests.support.rewinds import NEWEST, repository
from tests.support.rewound_sinks import FORWARD, KEEP, ROLLBACK, Sinks, carry_out, plan_of
from tests.support.stopped import STOPPED

STORED = Path(__file__).parents[2] / "golden" / "stored"
GOLDEN, SEVERAL = STORED / "repository" / "plans", STORED / "several_sinks"


class TestThePlan:
    def test_each_sink_has_its_line(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_of(orders, sinks.all)
        shown = plan.to_markdown()
        assert (
            f"| `{sinks.first.uri}` | delta | rollback | **SAFE** | version 2 to 0, 4 rows of 2 batches leave it |"
            in shown
        )
        assert f"| `{sinks.second.uri}` | delta | rollback | **SAFE** | version 2 to 0," in shown
        assert f"| `{sinks.files.uri}` | file | rollback | **SAFE** | its log, " in shown
        assert plan.sink_verdict is Verdict.SAFE
        assert [sink["report"]["kind"] for sink in plan.to_json()["sinks"]] == ["delta", "delta", "file"]
        assert sum("roll `" in step for step in plan.steps) == 2
        assert plan.undo
        assert any(reason.startswith(f"{sinks.second.uri}: nobody may write") for reason in plan.undo["reasons"])

    def test_it_asks_whether_this_is_all(self, orders: Location, sinks: Sinks) -> None:
        shown = plan_of(orders, sinks.all[:2]).to_markdown()
        assert f"This plan knows of `{sinks.first.uri}`, `{sinks.second.uri}`. Is this all of it?" in shown
        # One table with commits that Delta's own sink does not make: the code of a foreachBatch wrote them.
        assert f"knows of `{sinks.second.uri}`. Is this all of it?" in plan_of(orders, sinks.all[1:2]).to_markdown()
        assert "Is this all of it?" in plan_of(orders, [Sink(kind="foreach")], sink_exit=KEEP).to_markdown()

    def test_it_does_not_ask_of_a_sink_of_spark(self, orders: Location, sinks: Sinks) -> None:
        assert "Is this all" not in plan_of(orders, [Sink(place=sinks.files)]).to_markdown()
        assert "Is this all" not in plan_of(orders, [Sink(kind="kafka")], sink_exit=KEEP).to_markdown()
        assert "Is this all" not in plan_of(orders, [Sink()], sink_exit=None).to_markdown()

    def test_a_table_and_a_topic(self, orders: Location, sinks: Sinks) -> None:
        """A policy for each: the table is rolled back, and that the topic gets its rows twice is accepted."""
        both = [sinks.all[0], Sink(kind="kafka")]
        with pytest.raises(RefusedError, match="the sink kafka cannot be rolled back to batch 4: a kafka sink"):
            plan_of(orders, both)
        plan = plan_of(orders, both, sink_exit=[ROLLBACK, None])
        assert plan.verdict is Verdict.WILL_DUPLICATE
        assert [risk.word for risk in plan.risks] == ["sink_duplicates"]
        assert plan.risks[0].why.startswith("kafka: kafka keeps no memory")
        with pytest.raises(RefusedError, match="needs somebody to accept: sink_duplicates"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        accepted = ["sink_duplicates"]
        apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, accept=accepted, rest=STOPPED)
        assert batches_in(sinks.first) == [4, 4]

    @pytest.mark.parametrize(
        ("names", "policies", "why"),
        [
            ((0, 0), ROLLBACK, "is named twice"),
            ((0, "/"), ROLLBACK, "is named twice"),
            ((0, 1), [ROLLBACK, ROLLBACK, ROLLBACK], "3 sink policies are given for 2 sinks"),
            ((0, 1), [ROLLBACK, FORWARD], "can go forward only to all of them"),
            ((0, None), ROLLBACK, "one of several sinks has no name"),
        ],
    )
    def test_what_does_not_fit(
        self, orders: Location, sinks: Sinks, names: tuple[int | str | None, ...], policies: Any, why: str
    ) -> None:
        again = Sink(place=Location(sinks.first.store, f"{sinks.first.root}/"))
        given = [Sink() if n is None else again if n == "/" else sinks.all[int(n)] for n in names]
        with pytest.raises(RefusedError, match=why):
            plan_of(orders, given, sink_exit=policies)

    def test_forward_needs_them_at_one_batch(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=3)
        plan = plan_of(orders, sinks.all[:2], 5, sink_exit=FORWARD, repository=default_repository(orders))
        assert plan.batch_id == NEWEST
        behind = Sink(place=delta_table(tmp_path / "behind", [4, 5]))
        with pytest.raises(RefusedError, match=r"the sinks are not at one batch \(\S+/first at 6, \S+/behind at 5\)"):
            plan_of(orders, [sinks.all[0], behind], 5, sink_exit=FORWARD, repository=default_repository(orders))

    def test_a_table_version_needs_one_table(self, orders: Location, sinks: Sinks) -> None:
        to = Specifier("to_table_version", "0")
        with pytest.raises(RefusedError, match="--to-table-version does not say of which table"):
            plan_rewind(Checkpoint.at(orders), to, sink=sinks.all[:2], sink_exit=ROLLBACK, guards=())
        plan = plan_rewind(Checkpoint.at(orders), to, sink=[sinks.all[1], sinks.all[2]], sink_exit=ROLLBACK, guards=())
        assert plan.batch_id == 4


class TestTheDocument:
    def test_several_sinks_are_read_back(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_of(orders, sinks.all, sink_exit=[ROLLBACK, None, ROLLBACK])
        document = json.loads(json.dumps(plan.document()))
        assert RewindPlan.of_document(document) == plan
        assert RewindPlan.of_document(document).plan_fingerprint == plan.plan_fingerprint
        # Earlier releases read these keys, and stop where one is missing: they must not roll back one of several.
        assert not {"sink", "sink_exit", "app_id"} & document.keys()
        assert "sink" not in document["request"]

    def test_one_sink_is_stored_as_before(self, orders: Location, sinks: Sinks) -> None:
        """Earlier releases read exactly these keys, and refuse any other in the request and in what the sink says."""
        documents = [json.loads(path.read_text()) for path in GOLDEN.glob("*.json")]
        stored = next(document for document in documents if document.get("name") == "orders_delta")
        document = json.loads(json.dumps(plan_of(orders, sinks.all[:1]).document()))
        assert stored.keys() <= document.keys()
        assert document["request"].keys() == stored["request"].keys()
        since = {"query_ids", "memories", "doubts"}
        assert document["sink"].keys() - since == stored["sink"].keys() - since
        assert document["sink"]["rollback"].keys() - {"reverts"} == stored["sink"]["rollback"].keys() - {"reverts"}

    def test_stored_ones_stay_readable(self) -> None:
        stored = {kind: json.loads((SEVERAL / f"{kind}.json").read_text()) for kind in ("rewind", "reset")}
        rewind = RewindPlan.of_document(stored["rewind"])
        assert [(sink.name, sink.app_id == "x", sink.rolls_back) for sink in rewind.sinks] == [
            ("/lake/a", False, True),
            ("/lake/b", True, True),
        ]
        assert rewind.to_json()["sinks"] == stored["rewind"]["sinks"]
        reset = ResetPlan.of_document(stored["reset"])
        assert reset.request.sinks == (("/lake/a", ""), ("/lake/b", "x"))
        assert reset.to_json()["sinks"] == stored["reset"]["sinks"]

    def test_a_reset_of_several_sinks_is_read_back(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all)
        assert ResetPlan.of_document(json.loads(json.dumps(plan.document()))) == plan
        one = json.loads(json.dumps(plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all[0]).document()))
        assert (one["request"]["sink"], one["sink"]["kind"]) == (sinks.first.uri, "delta")
        assert "sinks" not in one


class TestTogether:
    def test_all_go_back_and_come_forward(self, orders: Location, sinks: Sinks) -> None:
        before, files = sinks.state(), set(stream(NEWEST))
        outcome = carry_out(orders, sinks.all)
        assert [sink["table_version"] for sink in outcome.to_json()["sinks"]] == [3, 3, None]
        assert sinks.state()[:4] == ([4, 4], [4, 4], 4, 4)
        assert not sinks.files.find("_spark_metadata/5")
        taken_back = undo(orders, repository(orders), sink=list(reversed(sinks.all)), rest=STOPPED)
        assert [sink["table_version"] for sink in taken_back.to_json()["sinks"]] == [4, 4, None]
        assert sinks.state() == before
        assert set(orders.walk()) == files

    def test_delta_and_iceberg(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        iceberg = Table(tmp_path / "lake").batch(4, 5, 6, query=QUERY_ID)
        both = [sinks.all[0], iceberg.sink]
        before = iceberg.held
        outcome = carry_out(orders, both)
        assert [sink["uri"] for sink in outcome.sinks] == [sinks.first.uri, iceberg.sink.name]
        assert (batches_in(sinks.first), iceberg.held) == ([4, 4], before[:1])
        undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert (batches_in(sinks.first), iceberg.held) == ([4, 4, 5, 5, 6, 6], before)

    def test_a_new_query_id_and_a_table_that_stays(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        """Spark rolls the first back, and the query gets a new id: the other one would not skip any more, and is refused."""
        other = Sink(place=delta_table(tmp_path / "own", range(4, NEWEST + 1)))
        versions = DeltaTable(sinks.first.uri).alter
        versions.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        both = [Sink(place=sinks.first, by_spark=lambda target, expected: None), other]
        with pytest.raises(RefusedError, match="which is to stay, knows its batches by the id that it has"):
            plan_of(orders, both, sink_exit=[ROLLBACK, None])
        plan = plan_of(orders, both)
        assert plan.new_query_id
        assert [sink.by_spark for sink in plan.sinks] == ["deletionVectors", None]

    def test_replay_is_proven_for_each(self, orders: Location, sinks: Sinks) -> None:
        carry_out(orders, sinks.all)
        plant(orders, stream(5))
        append(sinks.first.uri, 5)
        proof = prove_replay(Checkpoint.at(orders), 4, sink=sinks.all)
        assert proof.findings == (
            f"{sinks.files.uri}: _spark_metadata has no entry of batch 5, though the checkpoint resumes after 5: their rows are "
            "missing if they had any",
            f"{sinks.second.uri}: the table has no commit of batch 5: its rows are missing if it had any",
        )
        assert proof.to_json()["tables"] == {sinks.first.uri: {"5": 2}, sinks.second.uri: {}}
        append(sinks.second.uri, 5, app_id="copies")
        file_sink(sinks.files, 5)
        assert prove_replay(Checkpoint.at(orders), 4, sink=sinks.all).ok

    def test_none_where_somebody_has_written_into_one(self, orders: Location, sinks: Sinks) -> None:
        """Into the last: found before the first is rolled back."""
        plan = plan_of(orders, sinks.all[:2])
        append(sinks.second.uri, 99, app_id=None)
        before = sinks.state()
        with pytest.raises(RefusedError, match=r"second is at version 3, and the plan was made at version 2"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=sinks.all[:2], rest=STOPPED)
        assert sinks.state() == before
        assert set(orders.walk()) == set(stream(NEWEST))

    @pytest.mark.parametrize("gone", ["vacuumed", "lost"])
    def test_none_where_data_files_of_one_are_gone(self, orders: Location, sinks: Sinks, gone: str) -> None:
        """After the plan was made: those that left the table, which VACUUM deletes, or any of the version."""
        both, needed = sinks.all[:2], DeltaTable(sinks.second.uri, version=0).file_uris()
        if gone == "vacuumed":
            DeltaTable(sinks.second.uri).optimize.compact()
        plan = plan_of(orders, both)
        for path in needed:
            Path(path).unlink()
        with pytest.raises(RefusedError, match=r"version 0 of \S+/second needs the data file .*, which is gone"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        assert DeltaTable(sinks.first.uri).version() == 2
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_the_undo_brings_none_forward_where_data_files_of_one_are_gone(
        self, orders: Location, sinks: Sinks
    ) -> None:
        both = sinks.all[:2]
        before = DeltaTable(sinks.second.uri)
        left = set(before.file_uris()) - set(DeltaTable(sinks.second.uri, version=0).file_uris())
        carry_out(orders, both)
        for path in left:
            Path(path).unlink()
        with pytest.raises(RefusedError, match=r"version 2 of \S+/second needs .*cannot be brought forward") as refused:
            undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert str(refused.value.hint).startswith("rewind again instead; or put the file back from a copy")
        assert batches_in(sinks.first) == [4, 4]
        assert not loud_seal(orders)

    def test_none_where_a_file_of_the_file_sink_is_gone(self, orders: Location, sinks: Sinks) -> None:
        both = [sinks.all[0], sinks.all[2]]
        plan = plan_of(orders, both)
        sinks.files.delete("part 6.json")
        with pytest.raises(RefusedError, match=r"part 6\.json is gone though the sink's log names it"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        assert DeltaTable(sinks.first.uri).version() == 2
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_none_where_a_snapshot_has_expired(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        iceberg = Table(tmp_path / "lake").batch(4, 5, 6, query=QUERY_ID)
        both = [sinks.all[0], iceberg.sink]
        plan = plan_of(orders, both)
        iceberg.expire(1)
        with pytest.raises(RefusedError, match=r"snapshot .* has expired: the table cannot go there any more"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        assert DeltaTable(sinks.first.uri).version() == 2
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_the_undo_needs_all_of_them(self, orders: Location, sinks: Sinks) -> None:
        carry_out(orders, sinks.all[:2])
        with pytest.raises(RefusedError, match=r"rolled \S+/second back too") as refused:
            undo(orders, repository(orders), sink=sinks.all[:1], rest=STOPPED)
        assert f"--sink {sinks.first.uri} --sink {sinks.second.uri}" in str(refused.value.hint)
        assert batches_in(sinks.first) == [4, 4]


class TestOtherVerbs:
    def test_a_reset_judges_each(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all)
        assert [cutover.verdict for cutover in plan.cutovers] == [Verdict.SAFE, Verdict.WILL_SKIP, Verdict.WILL_SKIP]
        assert plan.verdict is Verdict.WILL_SKIP
        shown = plan.to_markdown()
        assert f"| `{sinks.second.uri}` | delta | **WILL_SKIP** |" in shown
        assert "Is this all of it?" in shown
        assert [risk.word for risk in plan.risks if risk.word.startswith("sink")] == ["sink_skips"]
        with pytest.raises(RefusedError, match="sink_skips"):
            apply_reset(plan, orders, repository(orders), rest=STOPPED)

    def test_a_reset_reads_again_what_not_all_tables_have(self, orders: Location, sinks: Sinks) -> None:
        """Batch 6 was not committed. Both tables have it: read after it. One does not: read it again."""
        orders.delete(f"commits/{NEWEST}")
        assert plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all[:2]).start == NEWEST
        DeltaTable(sinks.second.uri).restore(1)
        assert plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all[:2]).start == NEWEST - 1

    def test_a_restore_asks_each(self, orders: Location, sinks: Sinks, place: Location) -> None:
        manifest = create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=2).manifest
        answer = sink_says(sinks.all, manifest, orders, batch=5, repository=repository(orders))
        assert answer
        assert [verdict for _, _, verdict in answer.sinks] == [Verdict.WILL_SKIP] * 3
        plan = plan_restore(repository(orders), manifest, place / "elsewhere", batch=5, sink=answer)
        assert f"| `{sinks.files.uri}` | file | **WILL_SKIP** |" in plan.to_markdown()
        assert "Is this all of it?" in plan.to_markdown()
        named = f"--sink {sinks.first.uri} --sink {sinks.second.uri} --sink {sinks.files.uri} --sink-policy rollback"
        assert named in plan.risks[0].way
        assert len(plan.to_json()["sinks"]) == 3

    def test_a_restore_asks_for_what_each_sink_does(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        """A sink of which nothing is known, or that doubles rows, does not hide behind another one that skips them."""
        manifest = create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=2).manifest
        unknown = Sink(place=delta_table(tmp_path / "other", [0], app_id="others"))
        all_ = [sinks.all[0], Sink(kind="kafka"), unknown]
        answer = sink_says(all_, manifest, orders, batch=5, repository=repository(orders))
        assert answer
        assert answer.verdict is Verdict.WILL_SKIP
        elsewhere = open_location(str(tmp_path / "elsewhere"))

        plan = plan_restore(repository(orders), manifest, elsewhere, batch=5, sink=answer)
        assert {risk.word: risk.why.partition(": ")[0] for risk in plan.risks} == {
            "sink_skips": f"sink {sinks.first.uri}",
            "sink_duplicates": "sink kafka",
            "sink_unknown": f"sink {tmp_path / 'other'}",
        }

    def test_an_upgrade_judges_each(self, orders: Location, sinks: Sinks) -> None:
        both = [sinks.all[0], Sink(kind="kafka")]
        found = dry_run(Checkpoint.at(orders), lambda: both, ROLLBACK)
        assert [obstacle.code for obstacle in found.obstacles] == ["sink_without_memory:kafka"]
        each = dry_run(Checkpoint.at(orders), lambda: both, [ROLLBACK, KEEP])
        assert not each.obstacles
        assert [sink["policy"] for sink in each.to_json()["sinks"]] == ["rollback", "keep"]
        assert "Is this all of it?" in each.to_markdown()
        assert f"| `{sinks.first.uri}` | rollback |" in each.to_markdown()
        one = dry_run(Checkpoint.at(orders), Sink, KEEP)
        assert [obstacle.word for obstacle in one.obstacles] == [SINK_UNKNOWN]
        assert one.to_json().keys() == {"policy", "sink", "how", "obstacles"}
