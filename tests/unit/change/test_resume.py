"""A change that was begun by another attempt is finished only where it was begun, and as it was planned."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_ckpt_provider.change import engine
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    CkptError,
    RefusedError,
    RepositoryError,
    StorageError,
)
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.storage.location import Location
from tests.support import kinds_of_changes as verbs
from tests.support.checkpoints import commit_log, contents, offsets_log, plant
from tests.support.killed_changes import (
    document_of,
    each_verb,
    forge,
    half_way,
    is_sealed,
    without_seals,
)
from tests.support.kinds_of_changes import SINK, VERBS, held, orders
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import watched


class TestAResumeThatFails:
    @each_verb
    def test_leaves_what_is_half_changed_sealed(self, place: Location, name: str) -> None:
        """Whatever fails first: nobody may take a half-changed checkpoint for one that was not touched."""
        verb = VERBS[name]
        for number in range(60):
            here = half_way(verb, place / f"run{number}")
            reads: list[str] = []

            def fail(operation: str, path: str, reads: list[str] = reads, number: int = number) -> None:
                if operation == "read" and "/backups/" in path and "/changes/" not in path:
                    reads.append(path)
                    if len(reads) == number + 1:
                        raise StorageError(f"could not read {path}: no route to host")

            try:
                verb.carry_out(watched(here, fail)[0])
            except CkptError:
                assert is_sealed(verb.changed(here)), reads[-1]
                continue
            break
        assert number > 1


class TestAResume:
    @pytest.mark.parametrize("name", ["rewind", "reset", "repair"])
    def test_under_a_seal_that_no_attempt_has_put_asks_again_whether_the_query_is_stopped(
        self, place: Location, name: str
    ) -> None:
        """Somebody lifted the seal, started the stream, and sealed it again under the same id, as an upgrade does."""
        verb = VERBS[name]
        here = half_way(verb, place)
        mark = inspect_target(orders(here)).seal
        assert mark is not None
        remove_seal(orders(here), mark)
        put_seal(orders(here), mark.batch_id, plan_id=mark.plan_id, reason=mark.reason, made_by="an upgrade")
        now = verb.changed(here)
        asked = []

        def ask(*_: object, **__: object) -> None:
            asked.append(verb.changed(here))
            raise RefusedError("it runs")

        for what in (verb.carry_out, verb.take_back):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine, "prove_rest", ask)
                with pytest.raises(RefusedError, match="it runs"):
                    what(here)
            assert verb.changed(here) == now
        assert asked == [now, now]

    @each_verb
    @pytest.mark.parametrize("undo", [False, True])
    def test_under_a_seal_put_again_after_the_stream_ran_leaves_its_files_alone(
        self, place: Location, name: str, undo: bool
    ) -> None:
        """Its files have the names of those that were to go: removed by name, they would be lost without a copy."""
        verb = VERBS[name]
        here = half_way(verb, place)
        for checkpoint in {verb.checkpoint, verb.observed}:
            mark = inspect_target(here / checkpoint).seal
            if mark is not None:
                remove_seal(here / checkpoint, mark)
                plan_id, reason = mark.plan_id, mark.reason
        number = inspect_target(here / verb.checkpoint).newest_offsets + 1
        ran = {f"offsets/{number}": offsets_log('{"orders":{"0":7}}'), f"commits/{number}": commit_log()}
        plant(here / verb.checkpoint, ran)
        put_seal(here / verb.checkpoint, number + 1, plan_id=plan_id, reason=reason, made_by="an upgrade")
        now = verb.changed(here)
        with pytest.raises(RefusedError, match=r"was written since|did not write|was not ended"):
            (verb.take_back if undo else verb.carry_out)(here)
        assert verb.changed(here) == now

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair"])
    def test_at_a_copy_of_the_checkpoint_is_refused(self, place: Location, name: str) -> None:
        """A checkpoint that was copied half-way has the seal too; its record would speak of the other place."""
        verb = VERBS[name]
        here = half_way(verb, place)
        files = contents(orders(here))
        plant(here / "copies/orders", files)
        copied = (here / "copies/orders").root
        original = replace(here, root=here.root)
        plans = {
            "rewind": lambda: apply_rewind(
                verbs._plan_rewind(original), Checkpoint.at(here / "copies/orders"), held(here), sink=SINK, rest=STOPPED
            ),
            "reset": lambda: apply_reset(
                verbs._plan_reset(original), here / "copies/orders", held(here), accept=ACCEPTED, rest=STOPPED
            ),
            "repair": lambda: apply_repair(
                verbs._plan_repair(original), Checkpoint.at(here / "copies/orders"), repository=held(here), rest=STOPPED
            ),
        }
        with pytest.raises(RefusedError, match="was made for"):
            plans[name]()
        assert contents(here / "copies/orders") == files, copied

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "offsets/../../stolen"])
    def test_of_a_plan_that_writes_elsewhere_is_refused(self, place: Location, path: str) -> None:
        verb = VERBS["reset"]
        here = half_way(verb, place)
        _, document = document_of(here)
        forge(here, contents=document["contents"] | {path: "x"})
        now = without_seals(verb.changed(here))
        with pytest.raises(CkptError, match="stolen"):
            verb.carry_out(here)
        assert without_seals(verb.changed(here)) == now
        assert is_sealed(verb.changed(here))

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "offsets/../../stolen"])
    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("rewind", "deletes"),
            ("rewind", "writes"),
            ("rewind", "object"),
            ("rewind", "before"),
            ("repair", "deletes"),
            ("repair", "fetches"),
            ("repair", "object"),
            ("repair", "rewrites"),
            ("reset", "before"),
        ],
    )
    def test_of_a_plan_that_names_a_place_elsewhere(self, place: Location, name: str, key: str, path: str) -> None:
        verb = VERBS[name]
        here = half_way(verb, place)
        _, document = document_of(here)
        entries = "fetches" if name == "repair" else "writes"
        entry = {"path": "x", "size": 1, "object": "objects/orders/aa/x", "sha256": "00", "backup_id": "b"}
        more: Any = {
            "deletes": [path],
            "writes": [entry | {"path": path}],
            "fetches": [entry | {"path": path}],
            "object": [entry | {"object": path}],
            "before": {path: 1},
            "rewrites": {path: "AAAA"},
        }[key]
        key = entries if key == "object" else key
        old = document[key]
        forge(here, **{key: {**old, **more} if isinstance(old, dict) else [*old, *more]})
        now = verb.changed(here)
        with pytest.raises(RepositoryError, match="stolen"):
            verb.carry_out(here)
        assert verb.changed(here) == now

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair"])
    @pytest.mark.parametrize("lost", ["request", "deletes", "sink", "fetches", "sources"])
    def test_of_a_plan_that_lacks_something_names_the_file(self, place: Location, name: str, lost: str) -> None:
        verb = VERBS[name]
        here = half_way(verb, place)
        path, document = document_of(here)
        if lost not in document:
            return
        del document[lost]
        (here / "backups").replace(path, json.dumps(document).encode())
        now = verb.changed(here)
        with contextlib.suppress(CkptError):  # what the plan does not need may be missing
            verb.carry_out(here)
            return
        assert verb.changed(here) == now
