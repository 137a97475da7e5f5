"""CheckpointExpireOperator, and those that check, copy and migrate a repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.notes import hold
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.expire import CheckpointExpireOperator
from airflow_ckpt_provider.operators.migrate import CheckpointRepositoryMigrateOperator
from airflow_ckpt_provider.operators.repository import CheckpointCopyOperator, CheckpointRepositoryCheckOperator
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.spoiled import lose

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def backups(checkpoint: Path, repository: Path) -> Repository:
    opened = Repository.open_or_create(open_location(str(repository)))
    for _ in range(3):
        create_backup(Checkpoint.at(open_location(str(checkpoint))), opened)
    return opened


def expire(repository: Path, **fields: Any) -> CheckpointExpireOperator:
    return CheckpointExpireOperator(task_id="e", repository=str(repository), **{"keep": {"last": 1}, **fields})


def test_plan_then_apply_what_was_shown(backups: Repository, repository: Path, run: Run) -> None:
    ids = backups.backup_ids("orders")
    planned = expire(repository, prune="true").execute(run())
    assert json.loads(json.dumps(planned)) == planned
    assert backups.backup_ids("orders") == ids
    assert (planned["mode"], planned["outcome"], planned["prune_outcome"]) == ("plan", None, None)
    assert planned["prune"]["objects"] == 0
    assert [d["backup_id"] for d in planned["plan"]["going"]] == [ids[1], ids[0]]
    assert f"| {ids[2]} | kept | last backup" in planned["markdown"]
    shown = planned["plan"]["fingerprint"]
    applied = expire(repository, mode="apply", prune=True, fingerprint=shown, reason="tidy").execute(run())
    assert backups.backup_ids("orders") == ids[2:]
    assert [b["backup_id"] for b in applied["outcome"]["removed"]] == [ids[0], ids[1]]
    record = next(backups.records())
    assert (record["made_by"], record["reason"]) == ("dag/manual__1/task/-1", "tidy")
    again = expire(repository, mode="apply", fingerprint=shown).execute(run(try_number=2))
    assert again["outcome"]["removed"] == []


def test_another_plan_than_the_one_that_was_shown_is_refused(backups: Repository, repository: Path, run: Run) -> None:
    shown = expire(repository).execute(run())["plan"]["fingerprint"]
    hold(backups, backups.read_manifest("orders", backups.backup_ids("orders")[0]), reason="audit")
    with pytest.raises(AirflowFailException, match=f"the plan that was shown \\({shown}\\) is not the one"):
        expire(repository, mode="apply", fingerprint=shown).execute(run())
    assert len(backups.backup_ids("orders")) == 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"keep": {}}, "the policy is empty"),
        ({"keep": ""}, "the policy is empty"),
        ({"keep": {"last": "0"}}, "the policy is empty"),
        ({"keep": {"tag": ["a=b"]}}, "would keep none of the 3 backups of orders"),
        ({"keep": {"minutely": 3}}, "there is no rule 'minutely'"),
        ({"keep": {"last": "some"}}, "keep-last is 'some'"),
        ({"keep": {"within": "3w"}}, "'3w' is no span of time"),
        ({"keep": "7"}, "keep is 7"),
        ({"max_unused": "much"}, "max-unused is 'much'"),
        ({"abandoned_after": "later"}, "abandoned_after is 'later'"),
        ({"mode": "now"}, "mode is 'now'"),
        ({"name": "nobody"}, "holds no backup of nobody"),
    ],
)
def test_refused(backups: Repository, repository: Path, run: Run, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(AirflowFailException, match=says):
        expire(repository, **fields).execute(run())
    assert len(backups.backup_ids("orders")) == 3


def test_rules_from_a_form_are_text(backups: Repository, repository: Path, run: Run) -> None:
    keep = {"keep-last": "2", "within_daily": "1m", "monthly": "unlimited", "hourly": "None", "tag": "a=b,c"}
    plan = expire(repository, keep=keep).execute(run())["plan"]
    assert plan["policy"] == {"last": 2, "monthly": -1, "within_daily": "1m", "tags": ["a=b,c"]}


def test_check(backups: Repository, repository: Path, run: Run) -> None:
    operator = CheckpointRepositoryCheckOperator(task_id="c", repository=str(repository))
    report = operator.execute(run())
    assert json.loads(json.dumps(report)) == report
    assert report["ok"] is True
    entry = backups.manifest().files[0]
    lose(backups.location, entry.object)
    context = run()
    with pytest.raises(AirflowFailException, match=f"has 3 damaged backups\norders .*: {entry.path}: its object"):
        operator.execute(context)
    assert len(context["pushed"]["return_value"]["streams"][0]["damaged"]) == 3


def test_check_names_a_record_that_cannot_be_read(backups: Repository, repository: Path, run: Run) -> None:
    backups.location.create(f"objects/orders/aa/{'0' * 64}-9.pack", b"a pack is there")
    backups.location.create("moved/orders/000001.json", b"{")
    with pytest.raises(
        AirflowFailException, match=r"has 1 records that cannot be read\nmoved/orders/000001.json cannot be read"
    ):
        CheckpointRepositoryCheckOperator(task_id="c", repository=str(repository)).execute(run())


def migrate(repository: Path, **fields: Any) -> CheckpointRepositoryMigrateOperator:
    return CheckpointRepositoryMigrateOperator(task_id="m", repository=str(repository), **fields)


@pytest.mark.format_1("there is something to migrate")
def test_migrate(backups: Repository, repository: Path, run: Run) -> None:
    planned = migrate(repository).execute(run())
    assert json.loads(json.dumps(planned)) == planned
    assert (planned["mode"], planned["outcome"]) == ("plan", None)
    assert Repository.open(backups.location).format == 1
    shown = planned["plan"]["fingerprint"]
    with pytest.raises(AirflowFailException, match="the plan that was shown \\(0000\\) is not the one"):
        migrate(repository, mode="apply", fingerprint="0000").execute(run())
    applied = migrate(repository, mode="apply", fingerprint=shown).execute(run())
    assert applied["outcome"]["objects"] == applied["outcome"]["deleted"] == planned["plan"]["objects"] > 0
    assert Repository.open(backups.location).format == 2
    assert next(backups.records())["made_by"] == "dag/manual__1/task/-1"
    again = migrate(repository, mode="apply", fingerprint=shown).execute(run(try_number=2))
    assert again["outcome"]["objects"] == 0
    with pytest.raises(AirflowFailException, match="abandoned_after is 'later'"):
        migrate(repository, abandoned_after="later").execute(run())


def test_copy(backups: Repository, repository: Path, tmp_path: Path, run: Run) -> None:
    def copy(**fields: Any) -> dict[str, Any]:
        operator = CheckpointCopyOperator(
            task_id="c", repository=str(repository), target=str(tmp_path / "second"), create=True, **fields
        )
        result = operator.execute(run())
        assert json.loads(json.dumps(result)) == result
        return result

    ids = backups.backup_ids("orders")
    assert [b["backup_id"] for b in copy()["backups"]] == [ids[2]]
    assert [(b["backup_id"], b["already_there"]) for b in copy(backup_id="all", name="orders")["backups"]] == [
        (ids[0], False),
        (ids[1], False),
        (ids[2], True),
    ]
