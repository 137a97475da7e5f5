"""Chains that are resumed or undone after something else has happened: another repository, another commit, another chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change import fence
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.sealing import put_seal
from airflow_ckpt_provider.errors import CkptError, LeaseLostError, RefusedError, StorageError
from airflow_ckpt_provider.recovery.chains import together
from airflow_ckpt_provider.recovery.chains.sealed import find_begun, lift_all, part_ids
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.together import keeper
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.chain_changes import batches_of, carry_out, is_sealed, plan_of, take_back
from tests.support.chained_streams import IDS, NEWEST, Chained, end_of, reader
from tests.support.checkpoints import compact, plant
from tests.support.delta_batches import append
from tests.support.iceberg_tables import Table
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, watched


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Chained(tmp_path_factory.mktemp("chained")).root


@pytest.fixture
def chained(template: Path, tmp_path: Path) -> Chained:
    return Chained.copied(template, tmp_path / "0")


def test_a_rollback_behind_which_no_reader_stands(chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit without rows came before it. The same command must not lift the seals then: gold would read the rollback."""
    from airflow_ckpt_provider.sinks import delta_sink

    real = delta_sink.roll_back_table

    def late(target: Any, *, expected: int, **more: Any) -> int:
        if target.table.root.endswith("/silver") and DeltaTable(target.table.uri).version() == expected:
            DeltaTable(target.table.uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
            expected += 1
        return real(target, expected=expected, **more)

    monkeypatch.setattr(delta_sink, "roll_back_table", late)
    for _ in range(2):
        with pytest.raises(StorageError, match="silver was rolled back in version 8, and the streams that read it are"):
            carry_out(chained.streams())
        assert [is_sealed(chained, name) for name in IDS] == [True] * 3
    take_back(chained.streams())
    assert not any(is_sealed(chained, name) for name in IDS)


@pytest.mark.parametrize("stop_running", [False, True])
def test_begun_before_another_one_was_done(chained: Chained, stop_running: bool) -> None:
    """Its process was suspended before it planned; the streams that were started since are not even sealed."""
    carry_out(chained.streams())
    asleep = replace(STOPPED, said=Clocks(passed=3600))
    with pytest.raises(RefusedError, match=r"changed the checkpoint since a test said, 36\d\d s ago") as error:
        carry_out(chained.streams(), 3, rest=asleep, stop_running=stop_running)
    assert "stay" not in str(error.value.hint)
    assert not any(is_sealed(chained, name) for name in IDS)


def test_stopped_by_the_seals_on_a_word_of_before(chained: Chained) -> None:
    """The seals are no change of another attempt. The batches were made just now: a word of an hour ago would be void."""
    rest = replace(STOPPED, said=Clocks(passed=30))
    plan, _ = carry_out(chained.streams(), rest=rest, stop_running=True)
    assert batches_of(plan)["bronze"] == 4
    assert not any(is_sealed(chained, name) for name in IDS)


@pytest.mark.parametrize("stop_running", [False, True])
def test_a_stream_that_has_run_since_makes_the_word_void(chained: Chained, stop_running: bool) -> None:
    """No other attempt was there: somebody has started the streams while the approval was open."""
    rest = replace(STOPPED, said=Clocks(passed=3600))
    with pytest.raises(RefusedError, match=r"the query of .* has run since a test said, at .*, that it is stopped: "):
        carry_out(chained.streams(), rest=rest, stop_running=stop_running)
    assert not any(is_sealed(chained, name) for name in IDS)


@pytest.mark.slow
def test_resumed_with_another_repository(chained: Chained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The plan of what is half-way is in the first one. A new plan over changed checkpoints could not undo it."""
    from airflow_ckpt_provider.sinks import delta_sink

    real = delta_sink.roll_back_table

    def stop(target: Any, **how: Any) -> int:
        if target.table.root.endswith("/silver"):
            raise Killed("silver")
        return real(target, **how)

    before = chained.content()
    with monkeypatch.context() as patched:
        patched.setattr(delta_sink, "roll_back_table", stop)
        with pytest.raises(Killed):
            carry_out(chained.streams())
    half_way = chained.content()
    other = Repository.open_or_create(open_location(str(tmp_path / "other"))).location
    with pytest.raises(RefusedError, match="repository"):
        carry_out([replace(stream, repository=other) for stream in chained.streams()])
    assert chained.content() == half_way
    take_back(chained.streams())
    assert chained.content()["gold"] == before["gold"]


@pytest.mark.slow
def test_an_undo_that_is_sent_twice(chained: Chained) -> None:
    """A retry, or the same command after a kill: it takes one chain back, and not the one before it."""
    first, _ = carry_out(chained.streams())
    last, _ = carry_out(chained.streams(), 2)
    assert take_back(chained.streams()).plan_id == last.plan_id
    now = chained.content()
    again = take_back(chained.streams())
    assert (again.plan_id, again.already_done) == (last.plan_id, True)
    with pytest.raises(RefusedError, match="bronze"):
        take_back(chained.streams(), plan_id=first.plan_id)
    assert chained.content() == now
    assert not any(is_sealed(chained, name) for name in IDS)  # what was refused before any change can be started


@pytest.mark.slow
def test_chains_of_one_repository(template: Path, tmp_path: Path) -> None:
    """Two chains with the same names in one repository: each is undone by itself."""
    held = Repository.open_or_create(open_location(str(tmp_path / "held"))).location
    one, other = (Chained.copied(template, tmp_path / name) for name in ("one", "other"))
    both = [[replace(s, repository=held) for s in each.streams()] for each in (one, other)]
    first, _ = carry_out(both[0])
    second, _ = carry_out(both[1])
    now = one.content(), other.content()
    with pytest.raises(CkptError):
        take_back(both[0], plan_id=second.plan_id)
    assert (one.content(), other.content()) == now
    assert not any(is_sealed(one, name) for name in IDS)
    assert take_back(both[0]).plan_id == first.plan_id
    assert other.content() == now[1]


class Suspended:
    """An attempt at a chain that is suspended before one of its requests, while others act; then it wakes.

    :param patch: notes its fence.
    :param at: the request: the operation, and what its path contains.
    :param meanwhile: what others do.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, at: tuple[str, str], meanwhile: Callable[[], object], *, lost: bool = True
    ) -> None:
        self.at, self.meanwhile, self.lost = at, meanwhile, lost
        self.fences: list[Fence] = []
        real = together.alone

        @contextmanager
        def noted(*streams: Any, **how: Any) -> Iterator[Fence]:
            with real(*streams, **how) as found:
                self.fences.append(found)
                yield found

        patch.setattr(together, "alone", noted)

    def before(self, operation: str, path: str) -> None:
        if operation != self.at[0] or self.at[1] not in path:
            return
        self.at = ("", "")
        fence._ACTIVE.discard(self.fences[0].attempt.nonce)  # to others, its process is gone
        self.meanwhile()
        if self.lost:
            self.fences[0]._term.lose("it was suspended")


def half_undone(streams: Sequence[ChainStream]) -> None:
    """An undo that is killed among the files of silver."""
    life = Life(6)

    def die(operation: str, path: str) -> None:
        if operation in ("create", "delete_listed", "replace_listed") and "/checkpoints/silver/" in path:
            life.before(operation, path)

    watching = [replace(stream, checkpoint=watched(stream.checkpoint, die)[0]) for stream in streams]
    with pytest.raises(Killed):
        take_back(watching)


def test_the_seal_of_an_undo_is_not_that_of_the_chain(chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt wakes while it lifts the seals. The same command has lifted them, and an undo was killed half-way."""

    def meanwhile() -> None:
        carry_out(chained.streams())
        assert not any(is_sealed(chained, name) for name in IDS)
        half_undone(chained.streams())

    late = Suspended(monkeypatch, ("remove_empty_directories", "/checkpoints/bronze"), meanwhile)
    with pytest.raises(LeaseLostError):
        carry_out(chained.streams(before=late.before))
    assert is_sealed(chained, "silver")
    take_back(chained.streams())
    assert not any(is_sealed(chained, name) for name in IDS)


def test_an_undo_that_does_not_name_the_first_stream(
    chained: Chained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bronze was not changed. The fence of that undo is another one, and its seal stays all the same."""
    held = Repository.open_or_create(open_location(str(tmp_path / "held"))).location

    def streams(*names: str, **options: Any) -> list[ChainStream]:
        return [replace(stream, repository=held) for stream in chained.streams(*names, **options)]

    late = Suspended(
        monkeypatch,
        ("remove_empty_directories", "/checkpoints/bronze"),
        lambda: half_undone(streams("silver", "gold")),
        lost=False,
    )
    carry_out(streams(before=late.before), begins_with=["silver"])
    assert is_sealed(chained, "silver")
    take_back(streams("silver", "gold"))
    assert not any(is_sealed(chained, name) for name in IDS)


@pytest.mark.parametrize("below", ["", "-undo"])
def test_seals_of_one_that_was_killed_while_it_put_one_higher(chained: Chained, below: str) -> None:
    """Both are lifted, the lower one first: an undo that was refused may have given the seal back above its own."""
    lifted: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "delete_listed":
            lifted.append(path.rpartition("/checkpoints/")[2])

    bronze, _, gold = streams = chained.streams(before=note)
    put_seal(bronze.checkpoint, 7, plan_id=f"ca11-s1{below}", reason="", made_by="")
    put_seal(bronze.checkpoint, 8, plan_id="ca11-s1", reason="", made_by="")
    put_seal(gold.checkpoint, 7, plan_id="ca11-s2-undo", reason="", made_by="")
    with fenced(keeper(streams), bronze.checkpoint, plan_id="ca11", what="", made_by="") as held:
        lift_all(streams, part_ids("ca11", streams), held)
        assert lifted == ["bronze/offsets/7", "bronze/offsets/8"]
        lift_all(streams, part_ids("ca11", streams), held, undo=True)
        assert lifted[2:] == ["gold/offsets/7"]


def test_the_plan_of_a_later_attempt_stays(chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt wakes before it keeps its plan. Another one has found its seals, and has begun to go elsewhere."""

    def die(operation: str, path: str) -> None:
        if operation == "delete_listed" and "/checkpoints/silver/" in path:
            raise Killed(path)

    def meanwhile() -> None:
        with pytest.raises(Killed):
            carry_out(chained.streams(before=die), 2)

    late = Suspended(monkeypatch, ("create", ".rewinds/plans/"), meanwhile)
    with pytest.raises(LeaseLostError):
        carry_out(chained.streams(before=late.before), 4)
    begun = find_begun(chained.streams())
    assert begun is not None
    assert begun.plan is not None
    assert begun.plan.title == "rewind (to-batch 2)"
    carry_out(chained.streams(), 2)
    assert chained.content()["silver"] == [0, 0, 1, 1, 2, 2]


def test_a_reader_that_has_passed_a_rollback(chained: Chained) -> None:
    """With skipChangeCommits silver kept what left bronze by a rewind of bronze alone. Its later batches are no boundary."""
    table, silver = chained.table("bronze"), chained.checkpoint("silver")
    DeltaTable(str(table)).restore(4)
    for batch in (5, 6):
        append(table, batch, app_id=IDS["bronze"])
    plant(silver, reader("silver", [end_of(table, version) for version in range(10)]))
    chained.write("silver", range(7, 10))
    assert batches_of(plan_of(chained.streams("bronze", "silver"))) == {"bronze": 4, "silver": 4}


def test_a_reader_that_has_read_what_left_an_iceberg_table(tmp_path: Path, chained: Chained) -> None:
    """Bronze was rewound alone, and ran on; silver had read the snapshots that left. Only what it had before is a boundary."""
    iceberg = Table(tmp_path / "lake").batch(*range(NEWEST + 1), query=IDS["bronze"]).rollback(4)
    iceberg.batch(5, 6, query=IDS["bronze"])
    ids = [s.snapshot_id for s in sorted(iceberg.table.snapshots(), key=lambda s: s.sequence_number or 0)]
    about = {"version": 1, "position": 1, "scan_all_files": False}
    silver = chained.checkpoint("silver")
    bronze, reads = chained.streams("bronze", "silver")
    streams = [replace(bronze, sinks=(iceberg.sink,)), replace(reads, sinks=(Sink(),), policies=(None,))]
    # As it was when bronze had been rewound, silver stands at a snapshot that left: it was taken for a reader of another table.
    for versions in ((0, 4, 6, 7, 8), (0, 4, 6)):
        for path in list(silver.walk()):
            silver.delete(path)
        plant(silver, reader("silver", [compact({**about, "snapshot_id": ids[v]}) for v in versions]))
        assert batches_of(plan_of(streams, 5)) == {"bronze": 5, "silver": 1}
