"""Rewinding streams that read each other's tables: what one plan says, and what it refuses."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, same_streams
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.chain_changes import batches_of, carry_out, is_sealed, plan_of, take_back
from tests.support.chain_changes import chained as chained
from tests.support.chain_changes import template as template
from tests.support.chain_positions import named, position
from tests.support.chained_streams import IDS, NEWEST, Chained, end_of, reader
from tests.support.checkpoints import compact, file_source_log, plant
from tests.support.delta_batches import append
from tests.support.file_sinks import file_sink
from tests.support.iceberg_tables import Table
from tests.support.stopped import STOPPED


class TestThePlan:
    def test_all_go_to_one_boundary(self, chained: Chained) -> None:
        plan = plan_of(chained.streams("gold", "bronze", "silver"))
        assert batches_of(plan) == {"bronze": 4, "silver": 4, "gold": 4}
        assert [part.name for part, _ in plan.rewinds] == ["gold", "silver", "bronze"]
        shown = plan.to_markdown()
        table = chained.table("silver")
        assert f"| silver | `{chained.table('bronze')}` | 6 | 4 | `{table}` | 6 | 4 | **SAFE** |" in shown
        assert "This plan knows of the streams bronze, silver, gold. Is this all of it?" in shown
        silver = plan.parts[1].rewind
        assert silver is not None
        assert not silver.exact_replay
        assert set(silver.moved) == {"offsets/3", "offsets/4"}
        assert plan.verdict is Verdict.UNKNOWN  # of bronze's files, nobody was asked

    def test_it_is_read_back(self, chained: Chained) -> None:
        plan = plan_of(chained.streams())
        again = ChainPlan.of_document(json.loads(json.dumps(plan.document())))
        assert again == plan
        assert (again.plan_fingerprint, again.continued) == (plan.plan_fingerprint, True)

    def test_stored_ones_stay_readable(self) -> None:
        stored = json.loads((Path(__file__).parents[2] / "golden/stored/chains/chain.json").read_text())
        plan = ChainPlan.of_document(stored)
        assert [(p.name, p.rewind and p.rewind.batch_id) for p in plan.parts] == [
            ("bronze", 4),
            ("silver", 4),
            ("gold", 4),
        ]
        assert plan.parts[1].rewind is not None
        assert plan.parts[1].rewind.moved.keys() == {"offsets/3", "offsets/4"}
        assert plan.to_json()["parts"][2]["reads"] == {"0": "/lake/tables/silver"}
        assert plan.document().keys() <= stored.keys()

    def test_the_fingerprint_changes_with_any_of_them(self, chained: Chained) -> None:
        first = plan_of(chained.streams())
        assert plan_of(chained.streams()).plan_fingerprint == first.plan_fingerprint
        append(chained.table("gold"), 99, app_id=None)
        assert plan_of(chained.streams()).plan_fingerprint != first.plan_fingerprint
        with pytest.raises(RefusedError, match="is not the one that would be carried out now"):
            carry_out(chained.streams(), fingerprint=first.plan_fingerprint)

    def test_only_what_lies_downstream(self, chained: Chained) -> None:
        """From silver on, bronze stays; what reads nothing that changes is named and not touched."""
        plan = plan_of(chained.streams(), begins_with=["silver"])
        assert batches_of(plan) == {"bronze": None, "silver": 4, "gold": 4}
        assert "| bronze | - | 6 | stays | | | | reads nothing that changes |" in plan.to_markdown()
        assert plan.parts[1].rewind is not None
        assert plan.parts[1].rewind.exact_replay
        assert not plan.parts[1].rewind.moved

    def test_the_newest_common_boundary(self, tmp_path: Path) -> None:
        """Silver reads two or three versions at once: its batches end at 1, 3 and 6. Bronze goes to 3, though 4 was asked for."""
        chained = Chained(tmp_path, silver=[1, 3, 6])
        plan = plan_of(chained.streams())
        assert batches_of(plan) == {"bronze": 3, "silver": 1, "gold": 1}
        assert any("bronze goes to batch 3 and not to 4" in note for note in plan.notes)

    def test_a_stream_that_was_not_named(self, chained: Chained) -> None:
        """Its checkpoint lies beside those that were named: the plan finds it, and asks for its failure to be accepted."""
        plan = plan_of(chained.streams("bronze", "silver"))
        assert plan.verdict is Verdict.WILL_FAIL
        assert any(f"{chained.checkpoint('gold')} reads this table" in reason for reason in plan.reasons)
        with pytest.raises(RefusedError, match="needs somebody to accept: source_failure"):
            carry_out(chained.streams("bronze", "silver"))
        assert not is_sealed(chained, "silver")

    def test_a_neighbour_that_cannot_be_read(self, chained: Chained) -> None:
        """It may read the table: a reader whose log was damaged is not SAFE to stop."""
        readers = plan_of(chained.streams("bronze", "silver"))
        assert (readers.verdict, [risk.word for risk in readers.risks]) == (Verdict.WILL_FAIL, ["source_failure"])
        chained.checkpoint("gold").replace("offsets/6", b"garbage")
        plan = plan_of(chained.streams("bronze", "silver"))
        assert (plan.verdict, [risk.word for risk in plan.risks]) == (Verdict.UNKNOWN, ["sink_unknown"])
        assert any(f"{chained.checkpoint('gold')} cannot be read" in sentence for sentence in plan.others)

    def test_a_neighbour_that_cannot_be_read_where_no_table_goes_back(self, chained: Chained) -> None:
        plant(chained.checkpoint("other"), {"metadata": b"{}", "offsets/0": b"v1", "commits/0": b"v1"})
        plan = plan_of(tuple(replace(s, sinks=(Sink(),), policies=(None,)) for s in chained.streams("gold")))
        assert plan.others == ()
        assert any(f"{chained.checkpoint('other')} cannot be read" in note for note in plan.notes)

    def test_queries_of_one_application(self, chained: Chained) -> None:
        """They read nothing of each other: each goes to its own batch of that time, and a batch number is for one alone."""
        both = chained.streams("bronze", "gold")
        with pytest.raises(RefusedError, match="to-batch 4 does not say of which stream: bronze, gold"):
            plan_of(both)
        plan = plan_chain(both, Specifier("shift_by", "-2"), guards=(), look_in=[])
        assert batches_of(plan) == {"bronze": 4, "gold": 4}
        assert [part.reads for part in plan.parts] == [{}, {}]

    def test_a_version_with_the_same_rows(self, chained: Chained) -> None:
        """OPTIMIZE changes no row: silver's batch ends before it or behind it."""
        DeltaTable(str(chained.table("bronze"))).optimize.compact()
        assert batches_of(plan_of(chained.streams())) == {"bronze": 4, "silver": 4, "gold": 4}

    def test_a_batch_without_rows(self, tmp_path: Path) -> None:
        """It leaves a commit without a file: gold has read all that there is, before it and after it."""
        chained = Chained(tmp_path)
        empty, query = DeltaTable(str(chained.table("silver"))), Transaction(IDS["silver"], NEWEST + 1)
        properties = CommitProperties(app_transactions=[query])
        empty.create_write_transaction([], "append", empty.schema(), commit_properties=properties)
        silver = chained.checkpoint("silver")
        plant(silver, {f"{log}/7": silver.read(f"{log}/6") for log in ("offsets", "commits")})
        for partition in (0, 1):
            silver.replace(f"state/0/{partition}/8.changelog", b"changelog")
        append(chained.table("bronze"), 7, app_id=IDS["bronze"])
        bronze = chained.checkpoint("bronze")
        more = stream(7)
        plant(bronze, {path: data for path, data in more.items() if path not in bronze.walk()})
        plan = plan_of(chained.streams(), 6)
        assert batches_of(plan) == {"bronze": 6, "silver": 7, "gold": None}
        assert "it had not read all of" in plan.parts[1].undo_needs  # version 7 of bronze's table
        plan = plan_of(chained.streams(), 5)
        assert batches_of(plan) == {"bronze": 5, "silver": 5, "gold": 5}
        assert not plan.parts[2].undo_needs

    def test_a_table_whose_log_was_cleaned(self, chained: Chained) -> None:
        """The id of the table is in its log checkpoint only."""
        DeltaTable(str(chained.table("bronze")), version=2).create_checkpoint()
        for version in range(2):
            (chained.table("bronze") / "_delta_log" / f"{version:020d}.json").unlink()
        assert plan_of(chained.streams()).parts[1].reads == {"0": str(chained.table("bronze"))}


class TestRefusals:
    """The stream that cannot be rewound is named, before anything is touched."""

    def refused(self, streams: Sequence[ChainStream], match: str, batch: int = 4) -> RefusedError:
        with pytest.raises(RefusedError, match=match) as refused:
            carry_out(streams, batch)
        assert not any(Checkpoint.at(stream.checkpoint).progress().seal for stream in streams)
        return refused.value

    def test_a_circle(self, chained: Chained) -> None:
        ends = [end_of(chained.table("gold"), v) for v in range(NEWEST + 1)]
        plant(chained.checkpoint("bronze"), reader("bronze", ends))
        self.refused(chained.streams(), "read each other in a circle: (bronze|silver|gold) → ")

    def test_its_own_table(self, chained: Chained) -> None:
        ends = [end_of(chained.table("bronze"), v) for v in range(NEWEST + 1)]
        plant(chained.checkpoint("bronze"), reader("bronze", ends))
        self.refused(chained.streams(), "read each other in a circle: bronze → bronze")

    def test_two_that_write_one_table(self, chained: Chained) -> None:
        bronze, silver, gold = chained.streams()
        self.refused([bronze, silver, replace(gold, sinks=silver.sinks)], "silver and gold write to one sink")

    def test_only_a_part_of_a_version_was_read(self, tmp_path: Path) -> None:
        chained = Chained(tmp_path)
        half = [end_of(chained.table("bronze"), v, index=0) for v in range(NEWEST + 1)]
        plant(chained.checkpoint("silver"), reader("silver", half))
        refused = self.refused(
            chained.streams(), "silver cannot be rewound with bronze row-exactly: its batch 6 ends in the middle"
        )
        assert "reset it" in str(refused.hint)

    def test_it_began_with_the_wrong_rows(self, chained: Chained) -> None:
        snapshot = [end_of(chained.table("bronze"), 5, initial=True), end_of(chained.table("bronze"), 6)]
        for path in list(chained.checkpoint("silver").walk()):
            chained.checkpoint("silver").delete(path)
        plant(chained.checkpoint("silver"), reader("silver", snapshot))
        self.refused(
            chained.streams("bronze", "silver"), "silver cannot be rewound with bronze row-exactly: its batch 1 ends at"
        )

    def test_no_entry_before_it(self, tmp_path: Path) -> None:
        """Its only batch at the boundary is batch 0, before which there is none that could move too."""
        chained = Chained(tmp_path, silver=[4, 6])
        self.refused(chained.streams(), "its batch 0 has no log entry before it")

    def test_far_behind(self, tmp_path: Path) -> None:
        """It has read one version only, and bronze has no batch that old: the checkpoint begins at batch 2."""
        chained = Chained(tmp_path, silver=[0, 0, 0])
        plan = plan_of(chained.streams())
        assert batches_of(plan) == {"bronze": 0, "silver": 2, "gold": None}  # silver's table keeps all its rows
        chained.checkpoint("bronze").delete("offsets/0")
        chained.checkpoint("bronze").delete("commits/0")
        self.refused(
            chained.streams(), "silver cannot be rewound with bronze row-exactly: its batch 2 ends at version 0"
        )

    def test_a_sink_that_is_to_stay(self, chained: Chained) -> None:
        bronze, *others = chained.streams()
        kept = replace(bronze, policies=(None,))
        self.refused([kept, *others], "is to stay .policy keep., and silver reads it")

    def test_forward(self, chained: Chained) -> None:
        bronze, *others = chained.streams()
        forward = replace(bronze, policies=(SinkPolicy.FORWARD,))
        self.refused([forward, *others], "the policy 'forward' is not for the streams of a chain")

    def test_a_stream_that_never_ran(self, chained: Chained) -> None:
        for batch in range(NEWEST + 1):
            chained.checkpoint("gold").delete(f"commits/{batch}")
        self.refused(chained.streams(), "gold .* cannot be rewound: it has no committed batch")

    @pytest.mark.parametrize(
        ("names", "why"),
        [(("bronze", "bronze"), "two streams have the name bronze"), ((), "no stream is named")],
    )
    def test_names(self, chained: Chained, names: tuple[str, ...], why: str) -> None:
        streams = [chained.streams(name)[0] for name in names]
        with pytest.raises(RefusedError, match=why):
            plan_of(streams)

    def test_somebody_has_written_into_one(self, chained: Chained) -> None:
        """After it was planned: no seal stays, and no table has changed."""
        streams = chained.streams()

        def plan(chain_id: str | None) -> ChainPlan:
            made = plan_of(streams, chain_id=chain_id)
            if chain_id:
                append(chained.table("silver"), 99, app_id=None)
            return made

        with pytest.raises(RefusedError, match="silver is at version 7, and the plan was made at version 6"):
            apply_chain(streams, plan, rest=lambda _: STOPPED)
        assert [is_sealed(chained, name) for name in IDS] == [False] * 3
        assert DeltaTable(str(chained.table("gold"))).version() == NEWEST


class TestSources:
    def test_a_table_that_is_read_twice(self, chained: Chained) -> None:
        """A self-join: both positions have to end where the table goes to, and both move."""
        table = chained.table("bronze")
        both = [(end_of(table, v), end_of(table, min(v, 4))) for v in range(NEWEST + 1)]
        plant(chained.checkpoint("silver"), reader("silver", both))
        carry_out(chained.streams())
        assert [position(chained.checkpoint("silver"), b, s) for b in (3, 4) for s in (0, 1)] == [(8, -1)] * 4
        take_back(chained.streams(), accept=["source_failure"])

        apart = [(end_of(table, v), end_of(table, max(v - 1, 0))) for v in range(NEWEST + 1)]
        plant(chained.checkpoint("silver"), reader("silver", apart))
        with pytest.raises(RefusedError, match="silver cannot be rewound with bronze row-exactly"):
            plan_of(chained.streams())

    def test_another_source_stays_where_it_was(self, chained: Chained) -> None:
        kafka = [compact({"orders": {"0": 10 * (b + 1)}}) for b in range(NEWEST + 1)]
        ends = [(end_of(chained.table("bronze"), v), kafka[v]) for v in range(NEWEST + 1)]
        plant(chained.checkpoint("silver"), reader("silver", ends))
        plan, _ = carry_out(chained.streams())
        silver = plan.parts[1].rewind
        assert silver is not None
        sources = (silver.sources or {})["sources"]
        assert [(source["kind"], source["verdict"]) for source in sources] == [("delta", "SAFE"), ("kafka", "UNKNOWN")]
        lines = [chained.checkpoint("silver").read(f"offsets/{b}").decode().split("\n") for b in (3, 4)]
        assert [line[3] for line in lines] == kafka[3:5]
        assert position(chained.checkpoint("silver"), 4) == (8, -1)

    def test_a_batch_that_was_planned_and_not_committed(self, chained: Chained) -> None:
        """It is dropped. After an undo it would run into the rollback, which somebody has to accept."""
        ends = [end_of(chained.table("bronze"), v) for v in range(NEWEST + 1)]
        for path in list(chained.checkpoint("silver").walk()):
            chained.checkpoint("silver").delete(path)
        plant(chained.checkpoint("silver"), reader("silver", ends, committed=NEWEST - 1))
        plan, _ = carry_out(chained.streams())
        assert "its batch 6 was planned and not committed" in plan.parts[1].undo_needs
        assert "**not row-exact** for silver" in plan.to_markdown()
        with pytest.raises(RefusedError, match="silver would stop at the rollback") as refused:
            take_back(chained.streams())
        assert "--accept source_failure" in str(refused.value.hint)
        take_back(chained.streams(), accept=["source_failure"])
        assert position(chained.checkpoint("silver"), 6) == (7, -1)

    def test_version_2_of_the_offset_log(self, chained: Chained) -> None:
        """Spark 4.2 names its sources."""
        place = chained.checkpoint("silver")
        for batch in range(NEWEST + 1):
            first, about, offset = place.read(f"offsets/{batch}").decode().split("\n")
            assert first == "v1"
            place.replace(f"offsets/{batch}", f"v2\n{about}\nbronze:{offset}".encode())
        plan = plan_of(chained.streams())
        assert plan.parts[1].reads == {"bronze": str(chained.table("bronze"))}
        assert plan.parts[1].rewind is not None
        moved = plan.parts[1].rewind.moved["offsets/3"].split("\n")
        assert moved[0] == "v2"
        assert moved[2].startswith('bronze:{"sourceVersion":1')
        assert '"reservoirVersion":8,"index":-1' in moved[2]

    def test_an_iceberg_table(self, tmp_path: Path, chained: Chained) -> None:
        """Any batch that has read ancestors of that snapshot will do, and nothing moves: Iceberg reads on from an ancestor."""
        iceberg = Table(tmp_path / "lake").batch(*range(NEWEST + 1), query=IDS["bronze"])
        ids = [s.snapshot_id for s in sorted(iceberg.table.snapshots(), key=lambda s: s.sequence_number or 0)]
        ends = [
            compact({"version": 1, "snapshot_id": ids[v], "position": 1, "scan_all_files": False}) for v in (0, 2, 3, 5)
        ]
        for path in list(chained.checkpoint("silver").walk()):
            chained.checkpoint("silver").delete(path)
        plant(chained.checkpoint("silver"), reader("silver", ends))
        bronze, silver = chained.streams("bronze", "silver")
        streams = [replace(bronze, sinks=(iceberg.sink,)), replace(silver, sinks=(Sink(),), policies=(None,))]
        plan = plan_of(streams)
        assert batches_of(plan) == {"bronze": 4, "silver": 2}
        assert plan.parts[1].rewind is not None
        assert not plan.parts[1].rewind.moved
        before = iceberg.held
        files = {path: chained.checkpoint("silver").read(path) for path in chained.checkpoint("silver").walk()}
        carry_out(streams, accept=["sink_unknown"])
        assert iceberg.held == before[:5]
        take_back(streams)
        assert iceberg.held == before
        assert {p: chained.checkpoint("silver").read(p) for p in chained.checkpoint("silver").walk()} == files

    def test_the_output_of_a_file_sink(self, tmp_path: Path, chained: Chained) -> None:
        """The newest batch that has read no file that is removed."""
        out = file_sink(open_location(str(tmp_path / "out")), NEWEST)
        place = chained.checkpoint("silver")
        for path in list(place.walk()):
            place.delete(path)
        plant(place, reader("silver", [compact({"logOffset": v}) for v in range(NEWEST + 1)]))
        for v in range(NEWEST + 1):
            name = f"file://{out.root}/part%20{v}.json"
            place.replace(
                f"sources/0/{v}", file_source_log(v).replace(f"file:///in/f{v:04}.json".encode(), name.encode())
            )
        bronze, silver = chained.streams("bronze", "silver")
        streams = [replace(bronze, sinks=(Sink(place=out),)), replace(silver, sinks=(Sink(),), policies=(None,))]
        plan = plan_of(streams)
        assert plan.parts[1].reads == {"0": out.uri}
        assert batches_of(plan) == {"bronze": 4, "silver": 4}
        place.delete("sources/0/5")
        with pytest.raises(RefusedError, match=r"silver: sources/0/5 cannot be read"):
            plan_of(streams)


class TestNaming:
    def test_as_text_and_back(self) -> None:
        text = "bronze=/lake/ck/bronze,sink=/lake/a,txn-app-id=x,sink=/lake/b,policy=keep,sink=kafka,policy=keep"
        stream = named(text)
        assert [(sink.name, sink.app_id) for sink in stream.sinks] == [
            ("/lake/a", "x"),
            ("/lake/b", None),
            ("kafka", None),
        ]
        assert stream.policies == (SinkPolicy.ROLLBACK, None, None)
        assert stream.argument == text

    @pytest.mark.parametrize(
        "text", ["bronze=/lake/ck/bronze", "bronze=/lake/ck,sink=/lake/a", "b=/ck,sink=kafka,policy=keep"]
    )
    def test_a_command_that_was_printed_is_read(self, text: str) -> None:
        assert shlex.split(named(text).argument) == [text]

    def test_those_of_an_earlier_version_are_the_same_streams(self) -> None:
        """It wrote a policy where there was no sink, and read that back from nobody."""
        assert same_streams(["bronze=/ck,policy=keep"], [named("bronze=/ck").argument])
        assert not same_streams(["bronze=/ck,sink=/t,policy=keep"], [named("bronze=/ck,sink=/t").argument])

    @pytest.mark.parametrize(("name", "place"), [("region=eu", "eu"), ("eu", "a,b")])
    def test_what_no_command_can_name(self, chained: Chained, name: str, place: str) -> None:
        stream = ChainStream(name, chained.checkpoint(place))
        with pytest.raises(RefusedError, match=f"no command can name the stream '{name}'"):
            plan_of((stream,))

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("bronze", "is not NAME=CHECKPOINT,sink=SINK"),
            ("=/ck", "is not NAME=CHECKPOINT"),
            ("a=/ck,table=/t", "'table=/t' in"),
            ("a=/ck,policy=keep", "does not follow a sink"),
            ("a=/ck,sink=/t,policy=forward", "policy=forward"),
            ("a=/ck,sink=/t,sink=/t", "is named twice"),
        ],
    )
    def test_what_does_not_fit(self, text: str, why: str) -> None:
        with pytest.raises(RefusedError, match=why):
            named(text)
