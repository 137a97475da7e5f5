"""Rewinding streams that read each other's tables: what applying a plan does, stopped anywhere, and taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import ChangeRunningError, NoSuchBackupError, RefusedError, SealedError
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.kept_changes import repository_of_change
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.status import status_of
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.chain_changes import batches_of, carry_out, is_sealed, plan_of, take_back
from tests.support.chain_changes import chained as chained
from tests.support.chain_changes import template as template
from tests.support.chain_positions import position
from tests.support.chained_streams import IDS, Chained
from tests.support.checkpoints import plant
from tests.support.delta_batches import append
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life


class TestTogether:
    def test_there_and_back(self, chained: Chained) -> None:
        """Everything is as before, but for the positions: the tables have two commits more, and the readers are behind them."""
        before = chained.content()
        plan, outcome = carry_out(chained.streams())
        assert [stream["name"] for stream in outcome.streams] == ["gold", "silver", "bronze"]
        after = chained.content()
        assert [after[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3
        assert [after[f"{name} remembers"] for name in IDS] == [4] * 3
        assert [position(chained.checkpoint(n), b) for n in ("silver", "gold") for b in (3, 4)] == [(8, -1)] * 4
        assert not any(is_sealed(chained, name) for name in IDS)

        back = take_back(chained.streams())
        assert [stream["name"] for stream in back.streams] == ["bronze", "silver", "gold"]
        self.check_taken_back(chained, before)
        assert take_back(chained.streams(), plan_id=plan.plan_id).already_done

    def check_taken_back(self, chained: Chained, before: Any, version: int = 9) -> None:
        now = chained.content()
        for name in ("silver", "gold"):
            place = chained.checkpoint(name)
            assert [position(place, b) for b in (5, 6)] == [(version, -1)] * 2
            moved = {f"offsets/{b}" for b in (5, 6)}
            differing = {p for p, data in now[f"{name} files"].items() if data != before[f"{name} files"].get(p)}  # type: ignore[attr-defined]
            assert differing == moved
            assert now[f"{name} files"].keys() == before[f"{name} files"].keys()  # type: ignore[attr-defined]
        rest = [key for key in before if key not in ("silver files", "gold files")]
        assert {key: now[key] for key in rest} == {key: before[key] for key in rest}

    @pytest.mark.slow
    def test_in_one_repository(self, chained: Chained, tmp_path: Path) -> None:
        place = open_location(str(tmp_path / "repository"))
        Repository.open_or_create(place)
        streams = [replace(stream, repository=place) for stream in chained.streams()]
        before = chained.content()
        carry_out(streams)
        take_back(streams)
        self.check_taken_back(chained, before)

    @pytest.mark.slow
    def test_again_after_an_undo(self, chained: Chained) -> None:
        carry_out(chained.streams())
        take_back(chained.streams())
        plan, _ = carry_out(chained.streams())
        assert batches_of(plan) == {"bronze": 4, "silver": 4, "gold": 4}
        assert [chained.content()[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3
        assert [position(chained.checkpoint(n), b) for n in ("silver", "gold") for b in (3, 4)] == [(10, -1)] * 4

    @pytest.mark.slow
    def test_a_part_is_not_taken_back_alone(self, chained: Chained) -> None:
        plan, _ = carry_out(chained.streams())
        silver = chained.streams("silver")[0]
        with pytest.raises(RefusedError, match=f"is a part of chain {plan.plan_id}") as refused:
            undo(silver.checkpoint, repository_of_change(silver.checkpoint), sink=silver.sinks, rest=STOPPED)
        assert f"`airflow-ckpt chain undo {plan.arguments} --plan {plan.plan_id}`" in str(refused.value.hint)

    @pytest.mark.slow
    def test_the_undo_needs_all_of_them(self, chained: Chained) -> None:
        carry_out(chained.streams())
        with pytest.raises(RefusedError, match="changed gold too"):
            take_back(chained.streams("bronze", "silver"))
        with pytest.raises(NoSuchBackupError):
            take_back(chained.streams("gold"), plan_id="0badc0de")

    def test_no_undo_once_one_has_run(self, chained: Chained) -> None:
        """Nothing is undone then, of any of them."""
        carry_out(chained.streams())
        place = chained.checkpoint("gold")
        plant(place, {"offsets/5": place.read("offsets/4"), "commits/5": place.read("commits/4")})
        with pytest.raises(RefusedError, match=r"gold: .* was written to since rewind"):
            take_back(chained.streams())
        assert DeltaTable(str(chained.table("bronze"))).version() == 7
        assert not any(is_sealed(chained, name) for name in IDS)

    def test_a_second_run_meanwhile(self, chained: Chained) -> None:
        """It is refused, and leaves the seals of the first one alone."""
        streams = chained.streams()

        def plan(chain_id: str | None) -> ChainPlan:
            if chain_id:
                for again in (carry_out, take_back):
                    with pytest.raises(ChangeRunningError):
                        again(streams)
                assert [is_sealed(chained, name) for name in IDS] == [True] * 3
            return plan_of(streams, chain_id=chain_id)

        apply_chain(streams, plan, rest=lambda _: STOPPED)
        assert [chained.content()[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3

    def test_nothing_to_do(self, chained: Chained) -> None:
        carry_out(chained.streams())
        plan, outcome = carry_out(chained.streams())
        assert outcome.already_done
        assert plan.already_done
        assert not any(is_sealed(chained, name) for name in IDS)


class TestStoppedAnywhere:
    """After every single write, to a checkpoint or a repository."""

    def died(self, chained: Chained, writes: int) -> bool:
        try:
            carry_out(chained.streams(before=Life(writes).before))
        except Killed:
            return True
        return False

    @pytest.mark.parametrize("step", [131, pytest.param(1, marks=pytest.mark.slow)])
    def test_it_is_resumed_or_taken_back(self, template: Path, tmp_path: Path, step: int) -> None:
        half_way = 0
        for writes in range(0, 900, step):
            chained = Chained.copied(template, tmp_path / str(writes))
            before = chained.content()
            if not self.died(chained, writes):
                assert writes > 100
                break
            now = chained.content()
            changed = [name for name in IDS if now[name] != before[name]]
            sealed = [name for name in IDS if is_sealed(chained, name)]
            ended = len(changed) == 3 and now["bronze files"] != before["bronze files"]
            assert not changed or ended or sealed == list(IDS), f"after write {writes}"
            half_way += 0 < len(changed) < 3
            if writes % 2 and changed:
                take_back(chained.streams())
                taken = chained.content()
                assert {name: taken[name] for name in IDS} == {name: before[name] for name in IDS}
                for reader, read in (("silver", "bronze"), ("gold", "silver")):
                    # Behind the roll-back and its undo; an undo before the roll-back makes one commit, which is empty.
                    newest = DeltaTable(str(chained.table(read))).version()
                    assert newest == 8 if read in changed else newest in (6, 7)
                    assert position(chained.checkpoint(reader), 6) == (newest + 1, -1)
            else:
                carry_out(chained.streams())
                assert [chained.content()[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3
                assert [position(chained.checkpoint(n), 4) for n in ("silver", "gold")] == [(8, -1)] * 2
            assert not any(is_sealed(chained, name) for name in IDS)
        else:
            pytest.fail("it never ended")
        assert half_way or step > 1

    @pytest.mark.parametrize("step", [151, pytest.param(1, marks=pytest.mark.slow)])
    def test_an_undo_is_resumed(self, template: Path, tmp_path: Path, step: int) -> None:
        for writes in range(0, 600, step):
            chained = Chained.copied(template, tmp_path / str(writes))
            before = chained.content()
            carry_out(chained.streams())
            try:
                take_back(chained.streams(before=Life(writes).before))
                assert writes > 60
                break
            except Killed:
                take_back(chained.streams())
            TestTogether().check_taken_back(chained, before)
            assert not any(is_sealed(chained, name) for name in IDS)
        else:
            pytest.fail("it never ended")

    def half_way(self, chained: Chained, monkeypatch: pytest.MonkeyPatch, *, before: str, write: bool = False) -> None:
        """Gold is rewound; the table of another one not yet, for the process is killed, or somebody writes into it."""
        from airflow_ckpt_provider.sinks import delta_sink

        real = delta_sink.roll_back_table

        def stop(target: Any, **how: Any) -> int:
            if target.table.root.endswith(f"/{before}"):
                if not write:
                    raise Killed(before)
                append(target.table.uri, 99, app_id=None)
            return real(target, **how)

        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", stop)
            carry_out(chained.streams())

    def test_what_is_said_half_way(self, chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(Killed):
            self.half_way(chained, monkeypatch, before="silver")
        silver = chained.checkpoint("silver")
        status = status_of(Checkpoint.at(silver), repository_of_change(silver))
        assert status.commands[0].startswith("airflow-ckpt chain rewind --stream bronze=")
        assert status.commands[0].endswith(" --to-batch=4 --from bronze --apply")
        assert status.commands[1].startswith("airflow-ckpt chain undo --stream bronze=")
        to = Specifier("to_batch", "4")
        for name in IDS:
            place, sink = chained.checkpoint(name), Sink(place=open_location(str(chained.table(name))))
            with pytest.raises(SealedError, match="its part of chain"):
                plan_rewind(
                    Checkpoint.at(place),
                    to,
                    sink=sink,
                    sink_exit=SinkPolicy.ROLLBACK,
                    exact_replay=name == "bronze",
                    repository=default_repository(place),
                )
            with pytest.raises(RefusedError, match="is a part of chain"):
                undo(place, repository_of_change(place), sink=sink, rest=STOPPED)
        with pytest.raises(SealedError, match="that was not ended"):
            carry_out(chained.streams("bronze", "silver"))
        carry_out(chained.streams("gold", "bronze", "silver"))  # in whatever order they are named
        assert [chained.content()[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3

    def test_something_else_is_asked_half_way(self, chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was begun is not ended in its place; the same request in other words resumes it."""
        shown = plan_of(chained.streams())
        with pytest.raises(Killed):
            self.half_way(chained, monkeypatch, before="silver")
        now = chained.content()
        others: list[dict[str, Any]] = [
            {"batch": 2},
            {"begins_with": ["silver"]},
            {"exact_replay": False},
            {"batches": {**shown.batches, "gold": 3}},
            {"fingerprint": "0badc0de"},
        ]
        for asked in others:
            with pytest.raises(SealedError, match=r"a rewind \(to-batch 4\) that was not ended") as refused:
                carry_out(chained.streams(), **asked)
            assert f"airflow-ckpt chain rewind {shown.arguments} --to-batch=4 --from bronze --apply`" in str(
                refused.value.hint
            )
        assert chained.content() == now
        carry_out(chained.streams(), begins_with=["bronze"], batches=shown.batches, fingerprint=shown.plan_fingerprint)
        assert [chained.content()[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3

    def test_somebody_writes_into_one_after_the_check(self, chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
        """All stay sealed. Resumed it is refused again; the undo takes gold back, and what was written stays."""
        before = chained.content()
        with pytest.raises(RefusedError, match=r"silver is at version 7") as refused:
            self.half_way(chained, monkeypatch, before="silver", write=True)
        assert "gold, silver, bronze stay sealed" in str(refused.value.hint)
        assert "chain undo --stream" in str(refused.value.hint)
        assert [is_sealed(chained, name) for name in IDS] == [True] * 3
        with pytest.raises(RefusedError, match=r"silver is at version 7"):
            carry_out(chained.streams())
        take_back(chained.streams())
        now = chained.content()
        assert now["gold"] == before["gold"]
        assert now["silver"] == sorted([*before["silver"], 99, 99])  # type: ignore[misc]
        assert now["gold files"] == before["gold files"]  # silver's table was not rolled back: no position has to move
        assert not any(is_sealed(chained, name) for name in IDS)

    @pytest.mark.slow
    def test_a_seal_that_somebody_has_lifted(self, chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(Killed):
            self.half_way(chained, monkeypatch, before="silver")
        checkpoint = Checkpoint.at(chained.checkpoint("bronze"))
        with pytest.raises(RefusedError, match="has begun to change files"):
            unseal(checkpoint, for_start=True, begun=lambda _: True)
        unseal(checkpoint, force=True)
        with pytest.raises(RefusedError, match=r"the seal of bronze .* was lifted while chain"):
            carry_out(chained.streams())
        take_back(chained.streams())
        assert not any(is_sealed(chained, name) for name in IDS)

    def test_only_seals_are_left(self, chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
        """Killed between two seals that it lifts: the same command lifts the others, and changes nothing."""
        from airflow_ckpt_provider.recovery.chains import together

        def stop(streams: Sequence[ChainStream], *_: object) -> None:
            if streams:
                raise Killed("seals")

        with monkeypatch.context() as patched:
            patched.setattr(together, "lift_all", stop)
            with pytest.raises(Killed):
                carry_out(chained.streams())
        unseal(Checkpoint.at(chained.checkpoint("silver")), force=True)
        _, outcome = carry_out(chained.streams())
        assert outcome.streams == ()
        assert DeltaTable(str(chained.table("gold"))).version() == 7
        assert not any(is_sealed(chained, name) for name in IDS)
