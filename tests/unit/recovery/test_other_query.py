"""A backup of one query is not put over the checkpoint of another one silently."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import repository
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.replaced_queries import OTHER, back_up, begin, files_of
from tests.support.stopped import ACCEPTED, STOPPED


@pytest.fixture
def orders(place: Location) -> Location:
    return begin(place / "orders")


@pytest.fixture
def payments(place: Location) -> Manifest:
    """A backup of another stream."""
    begin(place / "payments", OTHER)
    return back_up(place, "payments").manifest


def plan(place: Location, manifest: Manifest, **options: object) -> RestorePlan:
    return plan_restore(repository(place), manifest, place / "orders", replace=True, **options)  # type: ignore[arg-type]


def query_id(place: Location) -> str:
    return str(json.loads(place.read("metadata"))["id"])


def test_it_is_refused_until_it_is_accepted(place: Location, orders: Location, payments: Manifest) -> None:
    made = plan(place, payments, sink=SinkAnswer(Verdict.SAFE, ("the sink says so",)))
    before = contents(orders)
    why = (
        f"the target belongs to query {QUERY_ID}, and the backup is of query {OTHER} of {(place / 'payments').uri}; nothing "
        "shows that they are one stream"
    )
    assert [(risk.word, risk.why) for risk in made.risks] == [("other_query", why)]
    assert made.verdict is Verdict.UNKNOWN
    assert made.reasons[0] == f"Another query: {why}."
    document = made.to_json()
    assert (document["query_id"], document["other_query"], document["accept"]) == (OTHER, QUERY_ID, ["other_query"])
    assert f"| query | `{OTHER}`; the target belongs to `{QUERY_ID}` |" in made.to_markdown()
    with pytest.raises(RefusedError, match="needs somebody to accept: other_query") as error:
        apply_restore(made, rest=STOPPED)
    assert "--accept other_query (accept=['other_query'])" in str(error.value.hint)
    assert contents(orders) == before

    apply_restore(made, rest=STOPPED, accept=["other_query"])
    assert query_id(orders) == OTHER
    record = next(repository(place).records())
    assert record["accepted"] == ["other_query"]
    assert record["plan"]["other_query"] == QUERY_ID


def test_the_same_query_and_an_empty_place_need_no_word(place: Location, orders: Location, payments: Manifest) -> None:
    made = back_up(place, "orders").manifest
    orders.replace("commits/4", b"v1\n{}")
    assert plan(place, made).risks == ()
    assert plan_restore(repository(place), payments, place / "elsewhere").risks == ()


def test_what_is_there_and_cannot_be_told_is_no_other_query(
    place: Location, orders: Location, payments: Manifest
) -> None:
    for damaged in (b"", b"{"):
        orders.replace("metadata", damaged)
        assert plan(place, payments).other_query == ""
    orders.delete("metadata")
    made = plan(place, payments)
    assert (made.other_query, made.verdict) == ("", Verdict.UNKNOWN)


@pytest.mark.parametrize("way", [ResetWay.NEW_QUERY_ID, ResetWay.FROM_SCRATCH])
@pytest.mark.parametrize("kept", ["backups", ""])
def test_a_reset_by_this_package_is_known(place: Location, orders: Location, way: ResetWay, kept: str) -> None:
    first = back_up(place, "orders").manifest
    held = repository(place) if kept else None
    reset = plan_reset(orders, way, repository=held.location if held else None)
    apply_reset(
        reset, orders, held or Repository.open_or_create(default_repository(orders)), accept=ACCEPTED, rest=STOPPED
    )
    if way is ResetWay.FROM_SCRATCH:
        plant(orders, files_of(OTHER, 1))
    assert query_id(orders) != QUERY_ID
    assert plan(place, first).risks == ()


def test_a_life_that_somebody_declared_is_known(place: Location, orders: Location) -> None:
    first = back_up(place, "orders").manifest
    begin(orders, OTHER)
    assert plan(place, first).other_query == OTHER
    second = back_up(place, "orders", new_life=True).manifest
    assert plan(place, first).risks == ()
    apply_restore(plan(place, first), rest=STOPPED)
    assert plan(place, second).risks == ()


def test_two_streams_with_one_name_of_version_0_1_are_not_one(place: Location, orders: Location) -> None:
    begin(place / "payments", OTHER)
    manifests = []
    for path in ("orders", "payments"):
        made = back_up(place, path, name="shared", new_life=True).manifest
        old = replace(made, query_ids=())
        repository(place).location.replace(old.path, old.to_document())
        manifests.append(old)
    assert plan(place, manifests[1]).other_query == QUERY_ID
    assert plan(place, manifests[0]).risks == ()


def test_a_damaged_plan_explains_nothing_and_hinders_nothing(place: Location, orders: Location) -> None:
    first = back_up(place, "orders").manifest
    reset = plan_reset(orders, ResetWay.NEW_QUERY_ID, repository=place / "backups")
    apply_reset(reset, orders, repository(place), accept=ACCEPTED, rest=STOPPED)
    (place / "backups").replace(f"plans/{reset.plan_id}.json", b"{")
    assert plan(place, first).other_query == reset.new_query_id


def test_a_rewind_to_the_backup_of_another_stream_is_refused(
    place: Location, orders: Location, payments: Manifest
) -> None:
    with pytest.raises(RefusedError) as error:
        plan_rewind(
            Checkpoint.at(orders),
            Specifier("to_batch", "4"),
            repository=place / "backups",
            name="payments",
            backup=payments.backup_id,
            guards=(),
        )
    assert error.value.message == (
        f"backup {payments.backup_id} is of query {OTHER} of {(place / 'payments').uri}, and {orders} is the checkpoint of query "
        f"{QUERY_ID}"
    )
    assert error.value.hint == (
        "choose a backup of this stream, or restore that one: `airflow-ckpt restore … --replace --accept other_query`"
    )


class TestIntoAnEmptyPlace:
    """The checkpoint is lost, and the backup of another stream is chosen, by ``latest`` or a wrong ``--name``."""

    @pytest.fixture
    def lost(self, place: Location, orders: Location) -> Location:
        back_up(place, "orders")
        for path in contents(orders):
            orders.delete(path)
        return orders

    def test_of_a_stream_that_was_backed_up_from_there(
        self, place: Location, lost: Location, payments: Manifest
    ) -> None:
        made = plan(place, payments, sink=SinkAnswer(Verdict.SAFE, ("the sink says so",)))
        assert made.verdict is Verdict.UNKNOWN
        assert [(risk.word, risk.why) for risk in made.risks] == [
            (
                "other_query",
                f"the target belongs to query {QUERY_ID}, and the backup is of query {OTHER} of "
                f"{(place / 'payments').uri}; nothing shows that they are one stream",
            )
        ]
        with pytest.raises(RefusedError, match="needs somebody to accept: other_query"):
            apply_restore(made, rest=STOPPED)
        assert contents(lost) == {}
        apply_restore(made, rest=STOPPED, accept=["other_query"])
        assert query_id(lost) == OTHER

    def test_of_the_same_stream_under_another_name(self, place: Location, lost: Location) -> None:
        begin(place / "moved")
        assert plan(place, back_up(place, "moved").manifest).risks == ()

    def test_a_place_of_nobody(self, place: Location, payments: Manifest) -> None:
        assert plan(place, payments).risks == ()

    def test_a_torn_checkpoint_that_has_lost_its_id(
        self, place: Location, orders: Location, payments: Manifest
    ) -> None:
        back_up(place, "orders")
        orders.delete("metadata")
        assert [risk.word for risk in plan(place, payments).risks] == ["other_query"]

    def test_with_backups_that_cannot_be_read_it_is_not_known(
        self, place: Location, lost: Location, payments: Manifest
    ) -> None:
        kept = repository(place)
        kept.location.replace(kept.manifest(name="orders").path, b"{")
        made = plan(place, payments, sink=SinkAnswer(Verdict.SAFE, ("the sink says so",)))
        assert (made.verdict, made.risks) == (Verdict.UNKNOWN, ())
        assert made.reasons[0].startswith("It is not known whether the target was another stream's: ")

    def test_an_older_backup_that_can_be_read_is_enough(
        self, place: Location, orders: Location, payments: Manifest
    ) -> None:
        back_up(place, "orders")
        newest = back_up(place, "orders").manifest.path
        for path in contents(orders):
            orders.delete(path)
        repository(place).location.replace(newest, b"{")
        assert [risk.word for risk in plan(place, payments).risks] == ["other_query"]
