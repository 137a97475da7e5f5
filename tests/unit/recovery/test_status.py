"""Where a rewind stands: each command that is shown does continue from there."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.errors import RepositoryError, SealedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.status import RewindStatus, status_in, status_of
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support import backups
from tests.support.backups import back_up, stream
from tests.support.checkpoints import Files, contents, logs, plant
from tests.support.command_line import run as run_program
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.flows import stateless
from tests.support.killing import killed_before
from tests.support.resets import file_sink
from tests.support.restores import wanted
from tests.support.rewinds import NEWEST, repository, rewind, rewound
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, watched


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    return plant(open_location(str(tmp_path / "orders")), stream(NEWEST))


def found(orders: Location, since: datetime | None = None) -> RewindStatus:
    return status_of(Checkpoint.at(orders), repository(orders), since=since)


def run(command: str) -> int:
    program, *arguments = shlex.split(command)
    assert program == "airflow-ckpt"
    return main(arguments)


def test_nothing_was_changed(orders: Location) -> None:
    situation = status_of(Checkpoint.at(orders), None)
    assert (situation.kind, situation.plan_id) == ("untouched", None)
    assert f"Its newest committed batch is {NEWEST}" in situation.message
    assert run(situation.commands[0]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"plan": 5},
        {"plan": {"batch_id": "x", "request": {}}},
        {"plan": {"batch_id": 2, "request": "x"}},
        {"plan": {"batch_id": 2, "request": {"sinks": [5]}}},
        {"at": "2026-11-27T00:00:00"},
        {"at": "x"},
        {"at": "0001-01-01T00:00:00+14:00"},
    ],
    ids=str,
)
def test_a_forged_record_is_named(orders: Location, wrong: dict[str, object]) -> None:
    rewind(orders, "to_batch", 2)
    place = repository(orders).location
    (path,) = place.walk("audit")
    plan_id = json.loads(place.read(path))["plan_id"]
    place.replace(path, json.dumps({**json.loads(place.read(path)), **wrong}).encode())
    with pytest.raises(RepositoryError, match=f"{plan_id}.* is forged|{plan_id}.json cannot be read"):
        status_in(Checkpoint.at(orders).progress(), repository(orders), list(repository(orders).records()))


@pytest.mark.parametrize("way", ["again", "undo"])
def test_stopped_after_any_write(tmp_path: Path, way: str) -> None:
    seen = set()
    for writes in range(1, 60):
        table = delta_table(tmp_path / f"table-{writes}", range(4, NEWEST + 1))
        orders = plant(open_location(str(tmp_path / f"h-{writes}" / "orders")), stream(NEWEST))
        dying, _ = watched(orders, Life(writes).before)
        repository(orders)
        try:
            rewind(dying, "to_batch", 5, table=table)
            break
        except Killed:
            situation = found(orders)
        seen.add(situation.kind)
        if situation.kind == "under_way":
            assert run(situation.commands[0 if way == "again" else 1]) == 0
            assert set(contents(orders)) == (rewound(contents(orders), 5) if way == "again" else set(stream(NEWEST)))
            assert batches_in(table) == ([4, 4, 5, 5] if way == "again" else [4, 4, 5, 5, 6, 6])
        else:
            assert set(contents(orders)) == (
                set(stream(NEWEST)) if situation.kind == "untouched" else rewound(contents(orders), 5)
            )
    else:
        pytest.fail("it never ended")
    assert seen == {"untouched", "under_way", "rewound"}


def test_rewound_and_taken_back(orders: Location, tmp_path: Path) -> None:
    table = delta_table(tmp_path / "table", range(4, NEWEST + 1))
    outcome = rewind(orders, "to_batch", 5, table=table)
    situation = found(orders)
    assert (situation.kind, situation.plan_id) == ("rewound", outcome.plan_id)
    assert "Start the stream, or undo the rewind" in situation.message
    assert found(orders, since=datetime.now(UTC) + timedelta(minutes=1)).kind == "untouched", "an old rewind is no news"
    assert run(f"{situation.commands[0]} --query-is-stopped") == 0
    assert set(contents(orders)) == set(stream(NEWEST))
    assert found(orders).kind == "untouched"


def test_the_stream_has_run_since(orders: Location) -> None:
    rewind(orders, "to_batch", 2)
    plant(orders, {path: data for path, data in stream(4).items() if path not in contents(orders)})
    situation = found(orders)
    assert situation.kind == "running_again"
    assert "up to batch 4" in situation.message
    assert all(run(command) == 0 for command in situation.commands)


def test_sealed_by_somebody_else(orders: Location) -> None:
    seal(Checkpoint.at(orders), reason="a colleague's deployment", made_by="anna", plan_id="hers")
    situation = found(orders)
    assert situation.kind == "sealed_by_another"
    assert "sealed by plan hers (a colleague's deployment, anna)" in situation.message
    assert run(situation.commands[0]) == 0
    assert found(orders).kind == "untouched"


def test_what_a_later_change_has_put_back_is_not_taken_for_a_batch_of_the_stream(orders: Location) -> None:
    """The files are others after it, with the same contents: ``status`` said that nothing can be undone, and ``undo`` did it."""
    held = repository(orders)
    manifest = create_backup(Checkpoint.at(orders), held, name="orders", restorable_batches=3).manifest
    before = contents(orders)
    plans = []
    for batch in (NEWEST - 1, NEWEST - 2):
        plans.append(plan_restore(held, manifest, orders, batch=batch, replace=True))
        apply_restore(plans[-1], rest=STOPPED)
    undo(orders, held, rest=STOPPED)
    situation = found(orders)
    assert (situation.kind, situation.plan_id) == ("changed", plans[0].plan_id)
    (offered,) = [each for each in situation.commands if " undo " in each]
    assert run(f"{offered} --query-is-stopped --quiet-for 0") == 0
    assert contents(orders) == before
    plant(orders, stream(NEWEST + 1))
    assert found(orders).kind == "untouched"


def test_after_an_undo_the_rewind_is_forgotten(orders: Location) -> None:
    rewind(orders, "to_batch", 2)
    undo(orders, repository(orders), rest=STOPPED)
    assert found(orders).kind == "untouched"


def test_the_command_names_all_that_was_asked_for(orders: Location, tmp_path: Path) -> None:
    place = tmp_path / "a table"
    for batch in range(4, NEWEST + 1):
        append(place, batch, app_id="my app")
    dying, _ = watched(orders, Life(6).before)
    sink = Sink(place=open_location(str(place)), app_id="my app")
    about = {"sink": sink, "sink_exit": SinkPolicy.ROLLBACK, "exact_replay": False, "guards": ()}
    plan = plan_rewind(Checkpoint.at(dying), Specifier("shift_by", "-1"), **about)
    with pytest.raises(Killed):
        apply_rewind(plan, Checkpoint.at(dying), repository(dying), sink=sink, rest=STOPPED)
    command = found(orders).commands[0]
    assert "--shift-by=-1" in command
    assert f"--sink '{open_location(str(place)).uri}'" in command
    assert "--txn-app-id 'my app' --sink-policy rollback --no-exact-replay --apply" in command


# ---- what a restore was given ----------------------------------------------------------------------


SCHEMA_LOG = "_schema_log_t/0"


@pytest.fixture
def here(tmp_path: Path) -> Location:
    return open_location(str(tmp_path))


def names_a_place(here: Location) -> Files:
    said = {"tableId": "t", "deltaCommitVersion": 1, "sourceMetadataPath": f"file:{here.root}/orders/sources/0"}
    return {**stream(2, partitions=1), SCHEMA_LOG: f"v1\n{json.dumps(said)}".encode()}


def killed_restore(here: Location, write: int, *given: str) -> RewindStatus:
    """The status of a restore into an empty place that was killed before a write."""
    manifest = back_up(here, names_a_place(here)).manifest
    target = here / "target"
    argv = ("restore", (here / "backups").uri, manifest.backup_id, target.uri, "--name", manifest.name)
    assert killed_before(write, *argv, *given, "--apply")
    return status_of(Checkpoint.at(target), backups.repository(here))


@pytest.mark.parametrize("write", [13, 15])
def test_the_same_restore_names_the_same_place(here: Location, write: int) -> None:
    situation = killed_restore(here, write, "--target-uri", "s3a://prod/or ders")
    assert "--target-uri 's3a://prod/or ders' --apply" in situation.commands[0]
    assert run(situation.commands[0]) == 0
    assert b'"s3a://prod/or ders/sources/0"' in (here / "target").read(SCHEMA_LOG)


def test_a_restore_that_is_resumed_without_its_place_keeps_it(here: Location) -> None:
    command = killed_restore(here, 13, "--target-uri", "s3a://prod/orders").commands[0]
    assert run(command.replace("--target-uri s3a://prod/orders ", "")) == 0
    assert b'"s3a://prod/orders/sources/0"' in (here / "target").read(SCHEMA_LOG)


@pytest.mark.parametrize("given", [("--target-uri", "s3a://prod/orders"), ()], ids=["given", "derived"])
def test_a_restore_is_not_resumed_for_another_place(here: Location, given: tuple[str, ...]) -> None:
    situation = killed_restore(here, 13, *given)
    (manifest,) = backups.repository(here).backups()
    before = contents(here)
    with pytest.raises(SealedError) as refused:
        plan_restore(backups.repository(here), manifest, here / "target", target_uri="s3a://test/orders")
    was = given[1] if given else ""
    assert refused.value.message == (
        f"{here / 'target'} is sealed by plan {situation.plan_id}, a restore that was not ended: its target_uri "
        f"(--target-uri) was {was!r} and is 's3a://test/orders'"
    )
    again, undoing = situation.commands
    assert refused.value.hint == f"run that one again: `{again}`, or undo it: `{undoing}`"
    assert contents(here) == before


def test_a_restore_of_an_earlier_version_is_resumed(here: Location) -> None:
    """Its document does not say which place was given."""
    situation = killed_restore(here, 13, "--target-uri", "s3a://prod/orders")
    path = f"plans/{situation.plan_id}.json"
    document = json.loads((here / "backups").read(path))
    del document["target_uri"]
    (here / "backups").replace(path, json.dumps(document).encode())
    again = status_of(Checkpoint.at(here / "target"), backups.repository(here)).commands[0]
    assert run(f"{again} --target-uri s3a://prod/orders") == 0
    assert b'"s3a://prod/orders/sources/0"' in (here / "target").read(SCHEMA_LOG)


# ---- what a reset was given ------------------------------------------------------------------------


FLOW = "_checkpoints/spark_catalog/default/orders/ingest"
STATED = ("--query-is-stopped", "--quiet-for", "0")


def commands_of(place: Path, *repository: object) -> list[str]:
    commands: list[str] = run_program("status", place, *repository, "--json").document["commands"]
    return commands


@pytest.mark.parametrize("write", [30, 38])
def test_the_same_reset_has_all_that_was_asked_for(tmp_path: Path, write: int) -> None:
    place, sinks = tmp_path / "a folder/orders", [tmp_path / "out", tmp_path / "an other"]
    plant(open_location(str(place)), logs(range(NEWEST + 1)))
    for sink in sinks:
        file_sink(sink, NEWEST)
    argv = ("reset", place, "--keep-position", "--batch", 4, "--continue-numbers", "--source", "0=1")
    argv = (*argv, "--sink", sinks[0], "--sink", sinks[1], "--txn-app-id", "", "--txn-app-id", "b c")
    argv = (*argv, "--new-txn-app-id", "new", *STATED, "--accept", "sink_duplicates", "--apply")
    assert killed_before(write, *argv)
    again, undoing = commands_of(place)
    refused = run_program("reset", place, "--from-scratch", *STATED, "--apply")
    assert refused.code == 1
    shorter = again.replace(f" --repository '{place}.rewinds'", "")
    assert f"run that one again: `{shorter}`, or undo it" in refused.err
    assert f"`{undoing}`" in refused.err
    assert run(again) == 0
    assert "sources/1/0" in contents(open_location(str(place)))
    assert commands_of(place) == [undoing]


@pytest.mark.parametrize("way", ["--from-scratch", "--new-query-id"])
def test_the_same_reset_without_options(orders: Location, way: str) -> None:
    argv = ("reset", orders.uri, way, *STATED, "--accept", "sink_unknown", "--apply")
    assert killed_before(7, *argv)
    again = commands_of(Path(orders.root))[0]
    assert again == f"airflow-ckpt reset {orders.uri} {way} --repository {orders.uri}.rewinds --apply"
    assert run(again) == 0


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("way", ["again", "undo"])
def test_the_reset_of_a_flow_has_all_that_was_asked_for(tmp_path: Path, way: str, version: int) -> None:
    storage = open_location(str(tmp_path / "pipe line"))
    plant(storage / FLOW / "0", stateless())
    sink = file_sink(tmp_path / "out", 3)
    argv = ("flows", storage.uri, "--reset", "ingest", "--keep-position", "--continue-numbers", "--sink", sink.uri)
    assert killed_before(9, *argv, *STATED, "--apply")
    commands = commands_of(Path(storage.root) / FLOW / str(version))
    refused = run_program(*argv[:-2], *STATED, "--accept", "sink_duplicates", "--apply")
    assert refused.code == 1
    assert "which was asked for otherwise and was not ended" in refused.err
    assert f"run that one again: `{commands[0]}`, or undo it" in refused.err
    assert run(commands[0 if way == "again" else 1]) == 0
    new = contents(storage / FLOW / "1")
    assert ("offsets/3" in new) is (way == "again")
    assert contents(storage / FLOW / "0") == stateless()


def test_the_reset_of_a_flow_by_an_earlier_version(tmp_path: Path) -> None:
    """Its plan does not say what was asked for."""
    storage = open_location(str(tmp_path / "pipeline"))
    plant(storage / FLOW / "0", stateless())
    argv = ("flows", storage.uri, "--reset", "ingest", "--keep-position", "--sink", "kafka", *STATED)
    assert killed_before(9, *argv, "--apply")
    kept = open_location(f"{storage.root}.rewinds")
    (path,) = kept.walk("plans")
    document = json.loads(kept.read(path))
    del document["request"]
    kept.replace(path, json.dumps(document).encode())
    situation = status_of(Checkpoint.at(storage / FLOW / "1"), Repository.open(kept))
    said = "The same flow-reset again, with all that it was given, completes it; undo undoes it. Say that the query is "
    assert said + "stopped (--query-is-stopped):" in situation.message
    assert [command.split()[1] for command in situation.commands] == ["undo"]
    assert main([*argv, "--apply"]) == 0


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("way", ["again", "undo"])
def test_the_restore_of_a_flow_is_resumed_as_one(tmp_path: Path, way: str, version: int) -> None:
    storage = open_location(str(tmp_path / "pipeline"))
    plant(storage / FLOW / "0", stateless())
    held = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    manifest = create_backup(Checkpoint.at(storage / FLOW / "0"), held).manifest
    plant(storage / FLOW / "0", stateless(5))
    argv = ("flows", storage.uri, "--restore-into-next", "ingest", "--repository", held.location.uri)
    argv = (*argv, *STATED, "--accept", "sink_unknown", "--accept", "sink_duplicates", "--apply")
    assert killed_before(16, *argv)
    situation = status_of(Checkpoint.at(storage / FLOW / str(version)), held)
    plain = ("restore", held.location.uri, manifest.backup_id, (storage / FLOW / "1").uri, "--name", manifest.name)
    refused = run_program(*plain, *STATED, "--apply")
    assert refused.code == 1
    assert f"run that one again: `{situation.commands[0]}`, or undo it" in refused.err
    assert run(situation.commands[0 if way == "again" else 1]) == 0
    assert contents(storage / FLOW / "0") == stateless(5)
    assert (contents(storage / FLOW / "1") == {}) is (way == "undo")


# ---- a change whose repository is elsewhere --------------------------------------------------------


@pytest.fixture
def half_restored(tmp_path: Path) -> Location:
    """Where `target` lies, whose restore from `backups` died while it wrote."""
    place = open_location(str(tmp_path))
    manifest = back_up(place, stream(3, partitions=1)).manifest
    target = plant(place / "target", stream(1, partitions=1))
    dying, _ = watched(target, Life(6).before)
    with pytest.raises(Killed):
        apply_restore(plan_restore(backups.repository(place), manifest, dying, replace=True), rest=STOPPED)
    return place


def test_a_change_of_another_repository_is_not_unsealed(half_restored: Location) -> None:
    target = half_restored / "target"
    situation = status_of(Checkpoint.at(target), None)
    assert situation.kind == "sealed_by_another"
    assert "restore of" in situation.message
    assert situation.commands == (f"airflow-ckpt status {target.uri} --repository REPOSITORY",)
    with pytest.raises(SealedError) as refused:
        seal(Checkpoint.at(target), reason="another change")
    assert "unseal" not in str(refused.value.hint)
    assert f"airflow-ckpt status {target.uri} --repository REPOSITORY" in str(refused.value.hint)


@pytest.mark.parametrize("way", ["again", "undo"])
def test_the_commands_name_the_repository(half_restored: Location, way: str) -> None:
    target, before = half_restored / "target", dict(sorted(stream(1, partitions=1).items()))
    repository = backups.repository(half_restored)
    situation = status_of(Checkpoint.at(target), repository)
    assert situation.kind == "under_way"
    command = situation.commands[0 if way == "again" else 1]
    assert run(f"{command} --query-is-stopped") == 0
    (manifest,) = repository.backups()
    assert contents(target) == (before if way == "undo" else wanted(half_restored, manifest))
    after = status_of(Checkpoint.at(target), repository)
    assert after.kind == ("changed" if way == "again" else "untouched")
    if way == "again":
        assert run(f"{after.commands[0]} --query-is-stopped") == 0
        assert contents(target) == before
