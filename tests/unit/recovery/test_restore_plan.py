"""restore_plan: what would be done, and every reason not to, each in its own words and with nothing changed."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import put_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, DamagedBackupError, RefusedError, SealedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_size, shown_time
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, entry_of, repository, stream
from tests.support.checkpoints import Files, contents, metadata, operator_metadata, plant
from tests.support.seals import seal_at
from tests.support.spoiled import overwrite
from tests.support.stopped import STOPPED
from tests.support.watched_stores import WRITES, Killed, Life, watched


def plan(place: Location, manifest: Manifest, target: Location | None = None, **options: Any) -> RestorePlan:
    return plan_restore(repository(place), manifest, target or place / "target", **options)


def refused(
    place: Location,
    manifest: Manifest,
    kind: type[CkptError],
    message: str,
    hint: str | None,
    target: Location | None = None,
    **options: Any,
) -> CkptError:
    before = contents(place)
    with pytest.raises(kind) as error:
        plan(place, manifest, target, **options)
    assert type(error.value) is kind
    assert (error.value.message, error.value.hint) == (message, hint)
    assert contents(place) == before
    return error.value


def test_into_an_empty_place(place: Location, manifest: Manifest) -> None:
    found = plan(place, manifest)
    assert (found.batch_id, found.verdict, found.already_done, found.replacing) == (4, Verdict.UNKNOWN, False, False)
    assert {e.path for e in found.entries} == {e.path for e in manifest.files_of(4)}
    assert found.bytes == sum(e.size for e in manifest.files_of(4))
    assert found.rewritten == {}
    assert found.reasons[0] == (
        "The query continues with batch 5 from the sources' offsets of batch 4. Sources must still have that data."
    )
    assert "a Delta table or file sink written directly skips their replay silently" in found.reasons[1]
    assert found.steps == (
        "read and check every object of the backup",
        "seal the empty target with offsets/5",
        f"write {len(found.entries)} files, {format_size(found.bytes)}: offsets/4, metadata, commits/4, sources, state, "
        "and last offsets/3",
        "check what was written",
        "write the audit record",
        "lift the seal",
    )


def test_replacing(place: Location, manifest: Manifest) -> None:
    plant(place / "target", stream(6))
    found = plan(place, manifest, replace=True)
    count = len(stream(6))
    assert found.replacing
    assert found.steps[1:4] == (
        "see that the query is stopped, seal the target",
        f"set aside what differs of its {count} files in the repository, and delete that",
        f"write {len(found.entries)} files, {format_size(found.bytes)}, but for what is there already: "
        "offsets/4, metadata, commits/4, "
        "sources, state, and last offsets/3",
    )


def test_nothing_is_written(place: Location, manifest: Manifest) -> None:
    plant(place / "target", stream(6))
    location, store = watched(place / "target")
    backups, asked = watched(place / "backups")
    plan_restore(Repository.open(backups), manifest, location, replace=True)
    assert store.count(*WRITES) == asked.count(*WRITES) == 0


def test_as_json_and_as_markdown(place: Location, manifest: Manifest) -> None:
    found = plan(place, manifest, batch=3)
    report = json.loads(json.dumps(found.to_json()))
    assert report == {
        "plan_id": found.plan_id, "kind": "restore", "backup_id": manifest.backup_id, "name": "orders", "batch_id": 3,
        "target": (place / "target").uri, "target_files": 0, "query_id": manifest.query_id,
        "other_query": "", "replace": False, "files": len(manifest.files_of(3)),
        "bytes": found.bytes, "rewritten": [], "verdict": "UNKNOWN", "reasons": list(found.reasons),
        "steps": list(found.steps), "accept": [], "fingerprint": found.plan_fingerprint,
        "already_done": False,
    }  # fmt: skip
    text = found.to_markdown()
    assert text.startswith(f"### Restore, plan {found.plan_id}\n")
    for part in (
        manifest.backup_id,
        "3; the query continues with 4",
        "**UNKNOWN**",
        str(place / "target"),
        *found.reasons,
    ):
        assert part in text
    for number, step in enumerate(found.steps, 1):
        assert f"{number}. {step}" in text


def test_the_fingerprint_follows_backup_batch_and_target(place: Location, manifest: Manifest) -> None:
    first = plan(place, manifest).plan_fingerprint
    assert plan(place, manifest).plan_fingerprint == first
    other = plan(place, manifest, batch=3).plan_fingerprint
    elsewhere = plan(place, manifest, place / "elsewhere").plan_fingerprint
    plant(place / "target", stream(6))
    filled = plan(place, manifest, replace=True).plan_fingerprint
    assert len({first, other, elsewhere, filled}) == 4


def test_the_first_batch_has_no_gate(place: Location) -> None:
    manifest = back_up(place, stream(0)).manifest
    assert plan(place, manifest).steps[2].endswith("offsets/0, metadata, commits/0, sources, state")


def test_the_fingerprint_follows_what_is_rewritten(place: Location) -> None:
    manifest = back_up(place, tws("s3a://old/ck")).manifest
    found = [plan(place, manifest, target_uri=uri).plan_fingerprint for uri in ("s3a://prod/x", "s3a://test/y")]
    assert len(set(found)) == 2
    assert found[0] == plan(place, manifest, target_uri="s3a://prod/x").plan_fingerprint


def test_the_fingerprint_follows_the_verdicts_of_the_sinks(place: Location, manifest: Manifest) -> None:
    lake = ("s3://lake/orders", "delta", Verdict.SAFE)
    answers = [
        None,
        SinkAnswer(Verdict.SAFE, ()),
        SinkAnswer(Verdict.UNKNOWN, ("x",)),
        SinkAnswer(Verdict.SAFE, (), (lake,)),
        SinkAnswer(Verdict.SAFE, (), (("s3://lake/payments", "delta", Verdict.SAFE),)),
        SinkAnswer(Verdict.SAFE, (), (lake, ("s3://lake/payments", "delta", Verdict.SAFE))),
        SinkAnswer(Verdict.UNKNOWN, (), (lake, ("s3://lake/payments", "delta", Verdict.UNKNOWN))),
    ]
    found = [plan(place, manifest, sink=answer).plan_fingerprint for answer in answers]
    assert len(set(found)) == len(answers)


def test_the_fingerprint_does_not_move_with_the_reasons(place: Location, manifest: Manifest) -> None:
    """They name versions and rows of a table that others write to as well."""
    first, later = (SinkAnswer(Verdict.WILL_DUPLICATE, (f"{rows} rows",)) for rows in (1, 2))
    assert plan(place, manifest, sink=first).plan_fingerprint == plan(place, manifest, sink=later).plan_fingerprint


def test_an_answer_of_sinks_is_read_as_it_was_written() -> None:
    answer = SinkAnswer(Verdict.WILL_SKIP, ("a", "b"), (("s3://lake/orders", "delta", Verdict.WILL_SKIP),))
    assert SinkAnswer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_the_fingerprint_of_a_restore_that_is_resumed_is_the_one_that_it_was_begun_with(
    place: Location, manifest: Manifest
) -> None:
    """Also where an earlier version has begun it, which calculated it in another way."""
    dying, _ = watched(place / "target", Life(6).before)
    with pytest.raises(Killed):
        apply_restore(plan(place, manifest, dying), rest=STOPPED)
    begun = plan(place, manifest)
    path = f"plans/{begun.plan_id}.json"
    document = json.loads((place / "backups").read(path))
    (place / "backups").replace(path, json.dumps({**document, "fingerprint": "0badc0de0badc0de"}).encode())
    with pytest.raises(RefusedError, match="was begun by a plan with the fingerprint 0badc0de0badc0de, not"):
        apply_restore(begun, rest=STOPPED, fingerprint=document["fingerprint"])
    apply_restore(begun, rest=STOPPED, fingerprint="0badc0de0badc0de")
    assert plan(place, manifest).already_done


def test_the_approval_names_the_place_as_spark_does(place: Location) -> None:
    manifest = back_up(place, tws("s3a://old/ck")).manifest
    shown = plan(place, manifest, target_uri="s3a://prod/x")
    shown.check_approval(shown.approval("r"), "r")
    with pytest.raises(RefusedError, match="target_uri was 's3a://prod/x' and is 's3a://test/y'"):
        plan(place, manifest, target_uri="s3a://test/y").check_approval(shown.approval("r"), "r")


@pytest.fixture
def two_streams(place: Location, monkeypatch: pytest.MonkeyPatch) -> tuple[Manifest, Manifest]:
    """Backups of two streams, taken in one second at one batch: they share an id."""

    class Still(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Still:
            return cls(2026, 11, 27, 8, 30, tzinfo=tz)

    monkeypatch.setattr("airflow_ckpt_provider.backup.create.datetime", Still)
    payments = plant(place / "payments", stream(4) | {"metadata": metadata(str(uuid.UUID(int=7)))})
    made = back_up(place, stream(4)), create_backup(Checkpoint.at(payments), repository(place))
    assert len({each.manifest.backup_id for each in made}) == 1
    return made[0].manifest, made[1].manifest


def test_the_fingerprint_follows_the_stream(place: Location, two_streams: tuple[Manifest, Manifest]) -> None:
    assert len({plan(place, manifest).plan_fingerprint for manifest in two_streams}) == 2


def test_a_restore_is_not_resumed_with_the_backup_of_another_stream(
    place: Location, two_streams: tuple[Manifest, Manifest]
) -> None:
    """The seal names the backup by its id alone."""
    orders, payments = two_streams
    dying, _ = watched(place / "target", Life(6).before)
    with pytest.raises(Killed):
        apply_restore(plan(place, orders, dying), rest=STOPPED)
    before = contents(place)
    with pytest.raises(
        SealedError, match=rf"target is sealed by plan \w+ \(restore of {orders.backup_id} batch 4 into"
    ):
        plan(place, payments)
    assert contents(place) == before
    assert plan(place, orders).continued


class TestRefusals:
    @pytest.mark.parametrize("batch", [2, 5, -1])
    def test_a_batch_that_is_not_in_it(self, place: Location, manifest: Manifest, batch: int) -> None:
        message = f"backup {manifest.backup_id} cannot restore batch {batch}"
        refused(place, manifest, RefusedError, message, "it can restore: 3, 4", batch=batch)

    @pytest.mark.parametrize("path", ["backups", "backups/inside", ""])
    def test_the_repository_and_the_target_one_inside_the_other(
        self, place: Location, manifest: Manifest, path: str
    ) -> None:
        target = place / path
        message = f"the target {target} and the repository {place / 'backups'} lie one inside the other"
        refused(place, manifest, RefusedError, message, "restore to a place of its own", target, replace=True)

    @pytest.mark.parametrize("path", ["orders/inside", "orders/state/0"])
    def test_the_target_inside_the_source(self, place: Location, manifest: Manifest, path: str) -> None:
        target = place / path
        message = (
            f"the target {target} and the checkpoint {place / 'orders'} that was backed up lie one inside the other"
        )
        refused(
            place, manifest, RefusedError, message, "restore beside it, or to exactly its place", target, replace=True
        )

    def test_the_source_inside_the_target(self, place: Location) -> None:
        elsewhere = place / "a"
        made = back_up(elsewhere, stream(4)).manifest
        moved = Manifest(**{n: getattr(made, n) for n in made.__slots__} | {"checkpoint": (place / "b/orders").uri})
        message = f"the target {place / 'b'} and the checkpoint {place / 'b/orders'} that was backed up lie one inside the other"
        refused(elsewhere, moved, RefusedError, message, "restore beside it, or to exactly its place", place / "b")

    def test_names_that_only_begin_alike_are_fine(self, place: Location, manifest: Manifest) -> None:
        plan(place, manifest, place / "orders2")
        plan(place, manifest, place / "backups2")

    def test_a_checkpoint_is_there(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        message = f"{place / 'target'} is not empty: it holds a checkpoint ({len(stream(6))} files)"
        hint = "restore to an empty place, or replace what is there (replace / --replace): it is kept first"
        refused(place, manifest, RefusedError, message, hint)

    def test_files_are_there(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", {"part-0.parquet": b"x"})
        message = f"{place / 'target'} is not empty: it holds files (1 files)"
        hint = "restore to an empty place, or replace what is there (replace / --replace): it is kept first"
        refused(place, manifest, RefusedError, message, hint)

    def test_only_checkpoints_are_replaced(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", {"part-0.parquet": b"x"})
        message = f"{place / 'target'} holds files that are no checkpoint, such as part-0.parquet"
        hint = "replace is for checkpoints only; choose an empty place"
        refused(place, manifest, RefusedError, message, hint, replace=True)

    @pytest.mark.parametrize("files", [{}, stream(4)], ids=["empty", "a checkpoint"])
    @pytest.mark.parametrize("replace", [False, True])
    def test_sealed_by_something_else(self, place: Location, manifest: Manifest, files: Files, replace: bool) -> None:
        target = plant(place / "target", files | seal_at(5))
        mark = inspect_target(target).seal
        assert mark is not None
        message = f"{target} is sealed by plan 7f3a (an upgrade, me, {shown_time(mark.since)}): offsets/5"
        hint = f"let that plan finish, or lift its seal: `airflow-ckpt unseal {target} --plan 7f3a`"
        refused(place, manifest, SealedError, message, hint, replace=replace)

    @pytest.mark.parametrize("other", [{"batch": 3}, {}], ids=["another batch", "another backup"])
    def test_sealed_by_another_restore(self, place: Location, manifest: Manifest, other: dict[str, int]) -> None:
        target = place / "target"
        reason = f"restore of {manifest.backup_id} batch 4 into an empty place"
        mark = put_seal(target, 5, plan_id="beef", reason=reason, made_by="me")
        wanted = manifest if other else back_up(place).manifest
        message = f"{target} is sealed by plan beef ({reason}, me, {shown_time(mark.since)}): offsets/5"
        status = f"airflow-ckpt status {target} --repository REPOSITORY"
        hint = f"let that change finish; if it was stopped, `{status}` shows the commands that finish and undo it"
        refused(place, wanted, SealedError, message, hint, **other)

    def test_to_be_continued_without_leave_to_replace(self, place: Location, manifest: Manifest) -> None:
        target = plant(place / "target", stream(6))
        put_seal(
            target,
            7,
            plan_id="beef",
            reason=f"restore of {manifest.backup_id} batch 4 replacing what was there",
            made_by="",
        )
        message = f"plan beef was to replace what is at {target} and was stopped before it had kept it"
        refused(place, manifest, RefusedError, message, "run the same command again, with replace / --replace")

    def test_to_be_continued_where_somebody_else_wrote(self, place: Location, manifest: Manifest) -> None:
        target = plant(place / "target", {"offsets/4": stream(4)["offsets/4"], "strange": b"x"})
        put_seal(
            target, 5, plan_id="beef", reason=f"restore of {manifest.backup_id} batch 4 into an empty place", made_by=""
        )
        message = f"{target} holds files that plan beef did not write, such as strange"
        refused(
            place, manifest, RefusedError, message, "see who else writes there; delete them or choose another place"
        )

    @pytest.mark.format_1("each object is missing by itself")
    @pytest.mark.parametrize("damage", ["missing", "short"])
    def test_a_damaged_object(self, place: Location, manifest: Manifest, damage: str) -> None:
        entry = entry_of(manifest, "state/0/1/5.changelog")
        if damage == "missing":
            (place / "backups").delete(entry.object)
            what = "is missing"
        else:
            plant(place / "backups", {entry.object: b"short"})
            what = f"has 5 bytes instead of {entry.size}"
        finding = f"{entry.path}: its object {entry.object} {what}"
        message = f"backup {manifest.backup_id} of orders is damaged: {finding}; nothing was changed"
        hint = "choose another backup; `airflow-ckpt verify --read-data` shows which are whole"
        error = refused(place, manifest, DamagedBackupError, message, hint)
        assert isinstance(error, DamagedBackupError)
        assert error.findings == (finding,)

    @pytest.mark.format_1("each object is missing by itself")
    def test_several_damaged_objects(self, place: Location, manifest: Manifest) -> None:
        for path in ("state/0/1/5.changelog", "state/0/0/5.changelog"):
            (place / "backups").delete(entry_of(manifest, path).object)
        with pytest.raises(DamagedBackupError, match=r"is missing \(and 1 more\); nothing was changed") as error:
            plan(place, manifest)
        assert len(error.value.findings) == 2

    @pytest.mark.format_1("each object is missing by itself")
    def test_damage_to_another_batch_does_not_matter(self, place: Location, manifest: Manifest) -> None:
        (place / "backups").delete(entry_of(manifest, "state/0/1/5.changelog").object)
        assert plan(place, manifest, batch=3).batch_id == 3


@pytest.mark.parametrize("damage", ["state/0/1/5.changelog", "state/0/0/3.zip", "sources/0/2", "offsets/4", "metadata"])
def test_a_damaged_target_is_not_what_the_plan_wants(place: Location, manifest: Manifest, damage: str) -> None:
    """One flipped bit, the same size: to fix exactly that one restores, so it must not be found "already done"."""
    target = plant(place / "target", {e.path: (place / "backups").read(e.object) for e in manifest.files_of(4)})
    assert plan(place, manifest).already_done
    right = target.read(damage)
    plant(target, {damage: right[:-1] + bytes([right[-1] ^ 1])})
    assert not plan(place, manifest, replace=True).already_done


def test_already_done(place: Location, manifest: Manifest) -> None:
    target = plant(place / "target", {e.path: (place / "backups").read(e.object) for e in manifest.files_of(4)})
    plant(target, {"offsets/.4.crc": b"h"})
    before = contents(place)
    found = plan(place, manifest)
    assert (found.already_done, found.verdict, found.steps) == (True, Verdict.SAFE, ())
    assert found.reasons == ("the target already holds exactly this batch of this backup: nothing to do",)
    outcome = apply_restore(found, rest=STOPPED)
    assert (outcome.already_done, outcome.kept, outcome.batch_id) == (True, None, 4)
    assert contents(place) == before


@pytest.mark.parametrize("more", [{"offsets/5": stream(5)["offsets/5"]}, {"state/0/0/6.changelog": b"x"}])
def test_more_files_than_the_plan_wants_is_not_done(place: Location, manifest: Manifest, more: Files) -> None:
    """A batch was logged since: the query has continued."""
    plant(place / "target", {e.path: (place / "backups").read(e.object) for e in manifest.files_of(4)} | more)
    assert not plan(place, manifest, replace=True).already_done


def tws(original: str) -> Files:
    """Operator metadata that names the checkpoint's own place."""
    files = stream(4)
    del files["state/0/_metadata/metadata"]
    uri = f"{original}/state/0/_stateSchema/default/0_f2e361a0"
    return files | {
        "state/0/_metadata/v2/0": operator_metadata(schema_files=[uri]),
        "state/0/_stateSchema/default/0_f2e361a0": b"s",
    }


class TestRelocation:
    def test_rewritten_for_the_new_place(self, place: Location, tmp_path: Path) -> None:
        manifest = back_up(place, tws("s3a://old/ck")).manifest
        target = Location(LocalStore(), str(tmp_path / "ck"))
        found = plan(place, manifest, target)
        assert list(found.rewritten) == ["state/0/_metadata/v2/0"]
        assert (
            f'"file:{tmp_path}/ck/state/0/_stateSchema/default/0_f2e361a0"'.encode()
            in found.rewritten["state/0/_metadata/v2/0"]
        )
        assert "rewrite absolute places in state/0/_metadata/v2/0" in found.steps
        outcome = apply_restore(found, rest=STOPPED)
        assert target.read("state/0/_metadata/v2/0") == found.rewritten["state/0/_metadata/v2/0"]
        assert outcome.bytes == sum(map(len, contents(target).values()))
        assert plan(place, manifest, target).already_done

    def test_the_schema_log_of_a_delta_source(self, place: Location, tmp_path: Path) -> None:
        """It stayed as it was, and Delta refused to start: the log names the source's own log by an absolute path."""
        said = {"tableId": "5f6c", "deltaCommitVersion": 3, "sourceMetadataPath": "s3a://old/ck/sources/0"}
        path = "schemas/_schema_log_5f6c/0"
        manifest = back_up(place, tws("s3a://old/ck") | {path: b"v1\n" + json.dumps(said).encode()}).manifest
        found = plan(place, manifest, Location(LocalStore(), str(tmp_path / "ck")))
        moved = found.rewritten[path].partition(b"\n")
        assert (moved[0], json.loads(moved[2])) == (
            b"v1",
            {**said, "sourceMetadataPath": f"file:{tmp_path}/ck/sources/0"},
        )

    def test_back_to_its_own_place_spark_need_not_be_named(self, place: Location) -> None:
        manifest = back_up(place, tws("abfss://c@account.dfs.core.windows.net/ck")).manifest
        target = place / "orders"
        assert manifest.checkpoint == target.uri
        assert plan(place, manifest, target, replace=True).rewritten == {}

    def test_to_its_own_place_nothing_is_rewritten(self, place: Location, tmp_path: Path) -> None:
        target = Location(LocalStore(), str(tmp_path / "ck"))
        manifest = back_up(place, tws(f"file:{tmp_path}/ck")).manifest
        assert plan(place, manifest, target).rewritten == {}

    def test_a_place_that_spark_names_otherwise(self, place: Location) -> None:
        manifest = back_up(place, tws("s3a://old/ck")).manifest
        target = place / "target"
        message = f"the checkpoint names absolute places, and how Spark names {target} cannot be derived"
        hint = "give it to a restore: --target-uri, as the query will have it in checkpointLocation"
        refused(place, manifest, RefusedError, message, hint)
        found = plan(place, manifest, target_uri="alluxio://host/ck")
        assert b"alluxio://host/ck/state/0/_stateSchema/default/0_f2e361a0" in found.rewritten["state/0/_metadata/v2/0"]

    def test_a_damaged_file_is_not_rewritten(self, place: Location, tmp_path: Path) -> None:
        manifest = back_up(place, tws("s3a://old/ck")).manifest
        entry = entry_of(manifest, "state/0/_metadata/v2/0")
        right = (place / "backups").read(entry.object)
        overwrite(place / "backups", entry.object, right[:-1] + b"]")
        message = f"{entry.path}: its object {entry.object} has another content than was backed up; nothing was changed"
        target = Location(LocalStore(), str(tmp_path / "ck"))
        error = refused_with_any_hint(place, manifest, DamagedBackupError, message, target)
        assert error.hint


def refused_with_any_hint(
    place: Location, manifest: Manifest, kind: type[CkptError], message: str, target: Location
) -> CkptError:
    with pytest.raises(kind) as error:
        plan(place, manifest, target)
    assert error.value.message == message
    return error.value
