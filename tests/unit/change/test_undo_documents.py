"""What an undo reads is damaged or forged: it is refused, and nothing of a checkpoint is touched."""

from __future__ import annotations

import json
import posixpath
import shlex
from typing import Any

import pytest

from airflow_ckpt_provider.change.plan import chain_command
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.change.undo import plan_to_undo
from airflow_ckpt_provider.errors import (
    CkptError,
    DamagedFileError,
    RefusedError,
)
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import contents, offsets_log, plant
from tests.support.every_run import of_these
from tests.support.killed_changes import (
    after_first_change,
    document_of,
    each_verb,
    forge,
    half_undone,
    half_way,
    is_sealed,
    killed,
    marker_of,
    started,
)
from tests.support.kinds_of_changes import VERBS, Verb, held, orders
from tests.support.stopped import STOPPED
from tests.support.watched_stores import watched


class TestAnUndoWhoseDocumentsAreDamaged:
    """Whatever is damaged or forged in the repository: it is named, and no file of a checkpoint or elsewhere is touched."""

    def refused(self, here: Location, verb: Verb, match: str) -> None:
        before = contents(here)
        with pytest.raises(CkptError, match=match) as error:
            verb.take_back(here)
        assert error.value.hint
        after = contents(here)
        changes = {
            p for p in {*before, *after} if before.get(p) != after.get(p) and not p.startswith("backups/changes/")
        }
        assert not changes

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair", "restore"])
    @pytest.mark.parametrize("done", [True, False])
    @pytest.mark.parametrize("flipped", [False, True])
    def test_a_file_that_was_set_aside_is_missing_or_another(
        self, place: Location, name: str, done: bool, flipped: bool
    ) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        if done:
            verb.carry_out(here)
        else:
            assert killed(after_first_change(verb, here), here, 10_000)
        kept = next(p for p in (here / "backups").walk("set-aside") if "/files/" in p)
        content = (here / "backups").read(kept)
        (here / "backups").delete(kept)
        if flipped:
            (here / "backups").create(kept, bytes([content[0] ^ 1]) + content[1:])
        self.refused(here, verb, kept.rpartition("/files/")[2])

    def test_a_file_that_is_damaged_while_it_is_put_back(self, place: Location) -> None:
        """The checkpoint stays sealed. Once the file is right again the same undo completes."""
        verb = VERBS["rewind"]
        here = verb.begin(place)
        before = verb.changed(here)
        verb.carry_out(here)
        kept = next(p for p in (here / "backups").walk("set-aside") if "/files/state/" in p)
        content = (here / "backups").read(kept)

        def damage(operation: str, path: str) -> None:
            if verb.changes(here, operation, path) and not path.rpartition("/")[0].endswith("/offsets"):
                (here / "backups").replace(kept, bytes([content[0] ^ 1]) + content[1:])

        with pytest.raises(DamagedFileError, match="is not what was kept"):
            verb.take_back(watched(here, damage)[0])
        assert is_sealed(contents(orders(here)))
        (here / "backups").replace(kept, content)
        verb.take_back(here)
        assert verb.changed(here) == before

    def test_a_file_that_was_to_stay_is_missing(self, place: Location) -> None:
        """Somebody lifted the seal half-way and deleted a file: putting back the rest would never be the whole."""
        verb = VERBS["rewind"]
        here = half_way(verb, place)
        orders(here).delete("offsets/0")
        self.refused(here, verb, "offsets/0")

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "a/../../stolen", "offsets/../../stolen"])
    @pytest.mark.parametrize("done", [True, False])
    def test_a_marker_that_names_a_file_elsewhere(self, place: Location, path: str, done: bool) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        if done:
            verb.carry_out(here)
        else:
            assert killed(after_first_change(verb, here), here, 10_000)
        repository, marker = here / "backups", marker_of(here)
        value = json.loads(repository.read(marker))
        value["files"][path] = 1
        repository.replace(marker, json.dumps(value).encode())
        kept = posixpath.normpath(f"{repository.root}/{marker.replace('COMPLETE', f'files/{path}')}")
        repository.store.replace(kept, b"x")
        _, document = document_of(here)
        forge(here, before=document["before"] | {path: 1})
        self.refused(here, verb, "stolen")

    @pytest.mark.parametrize(
        "content",
        of_these(
            [b"", b'{"from": "orders", "fil', b"[]", b'{"files": 1}', b'{"files": {"a": "b"}}'],
            b'{"from": "orders", "fil',
            b'{"files": {"a": "b"}}',
        ),
    )
    @each_verb
    def test_a_marker_that_is_half_written(self, place: Location, name: str, content: bytes) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        marker = marker_of(here)
        (here / "backups").replace(marker, content)
        self.refused(here, verb, "COMPLETE")

    @pytest.mark.parametrize(
        "content", of_these([b"", b"{", b"[]", b"{}", b'{"plan_id": "another"}'], b"{", b'{"plan_id": "another"}')
    )
    @each_verb
    def test_a_plan_that_is_half_written(self, place: Location, name: str, content: bytes) -> None:
        verb = VERBS[name]
        here = half_way(verb, place)
        path, _ = document_of(here)
        (here / "backups").replace(path, content)
        self.refused(here, verb, "plans/")

    @each_verb
    def test_a_plan_of_another_id(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        forge(here, plan_id="another")
        self.refused(here, verb, "plans/")

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair", "restore"])
    def test_a_plan_that_does_not_know_what_was_there_before(self, place: Location, name: str) -> None:
        """Else everything that it does not know would be deleted."""
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        _, document = document_of(here)
        before = dict(document["before"])
        stayed = json.loads((here / "backups").read(marker_of(here)))["left"]
        before.pop(next(iter(stayed), next(iter(before))))
        forge(here, before=before)
        self.refused(here, verb, "before")

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
    @each_verb
    def test_a_record_that_is_half_written(self, place: Location, name: str, content: bytes) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        record = next(iter((here / "backups").walk("audit")))
        (here / "backups").replace(record, content)
        self.refused(here, verb, "audit/")

    @pytest.mark.parametrize("name", ["flow-reset", "restore of a flow"])
    @pytest.mark.parametrize("key", ["checkpoint", "observed"])
    @pytest.mark.parametrize("other", ["victim/1", "{parent}/..", "{parent}/victim", "{parent}/1/../../../victim/1"])
    def test_a_plan_of_a_flow_that_names_another_place(self, place: Location, name: str, key: str, other: str) -> None:
        """All that such a place held would be deleted: it did not exist before, says the plan."""
        verb = VERBS[name]
        here = verb.begin(place)
        plant(here / "victim/1", {"metadata": b"theirs"})
        plant(here / verb.checkpoint.rpartition("/")[0] / "victim", {"metadata": b"theirs"})
        verb.carry_out(here)
        _, document = document_of(here)
        target = other.format(parent=(here / verb.checkpoint.rpartition("/")[0]).uri)
        target = target if "://" in target or target.startswith("/") else (here / target).uri
        # The person names the version that the forged plan says was observed, or made.
        stays = {"checkpoint": "observed", "observed": "checkpoint"}[key]
        forge(here, **{key: target, "before": {}})
        before = contents(here)
        with pytest.raises(CkptError):
            undo(
                here / (verb.observed if stays == "observed" else verb.checkpoint),
                held(here),
                plan_id=document["plan_id"],
                rest=STOPPED,
                open_place=lambda uri: Location(here.store, uri.partition("://")[2] or uri),
            )
        assert contents(here) == before

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "offsets/../../stolen", "a\0b"])
    @pytest.mark.parametrize("key", ["left", "before", "deletes", "writes", "written"])
    def test_any_other_path_that_leads_elsewhere(self, place: Location, path: str, key: str) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        verb.carry_out(here)
        if key == "left":
            repository, marker = here / "backups", marker_of(here)
            value = json.loads(repository.read(marker))
            value["left"][path] = None
            repository.replace(marker, json.dumps(value).encode())
        else:
            _, document = document_of(here)
            entry = {"path": path, "size": 1, "object": "objects/orders/aa/x"}
            more: Any = {"before": {path: 1}, "written": {path: 1}, "deletes": [path], "writes": [entry]}[key]
            old = document[key]
            forge(here, **{key: {**old, **more} if isinstance(old, dict) else [*old, *more]})
        self.refused(here, verb, "stolen|a.{1,3}0b")

    @pytest.mark.parametrize("plan_id", ["../../victim", "a/../../b", "a/b"])
    def test_a_seal_of_a_plan_whose_id_leads_elsewhere(self, place: Location, plan_id: str) -> None:
        verb = VERBS["restore"]
        here = verb.begin(place)
        put_seal(orders(here), 9, plan_id=plan_id, reason="restore of x", made_by="me")
        self.refused(here, verb, ".")

    @pytest.mark.parametrize("plan_id", ["../audit/x", "..", "a/b", "/x", ""])
    def test_an_id_that_leads_elsewhere(self, place: Location, plan_id: str) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        verb.carry_out(here)
        _, document = document_of(here)
        (here / "backups").replace("audit/x.json", json.dumps(document | {"plan_id": plan_id}).encode())
        with pytest.raises(RefusedError):
            plan_to_undo(orders(here), held(here), plan_id)


class TestAHalfDoneUndoWhoseSealWasLifted:
    def lifted(self, verb: Verb, place: Location) -> Location:
        here = verb.begin(place)
        verb.carry_out(here)
        assert killed(lambda _: half_undone(verb, here), here, 10_000)
        for checkpoint in {verb.checkpoint, verb.observed}:
            mark = inspect_target(here / checkpoint).seal
            if mark is not None:
                remove_seal(here / checkpoint, mark)
        return here

    @each_verb
    def test_is_finished(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = self.lifted(verb, place)
        verb.take_back(here)
        assert verb.changed(here) == verb.changed(verb.begin(place / "model"))

    @each_verb
    def test_is_not_once_the_stream_was_started(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = self.lifted(verb, place)
        now = started(verb, here)
        with pytest.raises(RefusedError, match="the stream was started"):
            verb.take_back(here)
        assert verb.changed(here) == now

    def test_is_not_where_a_file_that_was_to_stay_is_missing(self, place: Location) -> None:
        verb = VERBS["rewind"]
        here = self.lifted(verb, place)
        orders(here).delete("offsets/0")
        with pytest.raises(RefusedError, match="was written to since"):
            verb.take_back(here)


class TestARepairOfVersion010:
    """Its audit record does not say what was there afterwards."""

    def test_is_not_taken_back_once_the_stream_has_run(self, place: Location) -> None:
        verb = VERBS["repair"]
        here = verb.begin(place)
        verb.carry_out(here)
        path = next(iter((here / "backups").walk("audit")))
        record = json.loads((here / "backups").read(path))
        del record["after"]
        (here / "backups").replace(path, json.dumps(record).encode())
        _, document = document_of(here)
        document.pop("before")
        forge(here, before={})
        batch = int(document["batch_id"])
        ran = {
            path: contents(orders(here))["commits/0"] if path.startswith("commits") else offsets_log()
            for number in range(batch + 1, batch + 3)
            for path in (f"offsets/{number}", f"commits/{number}")
        }
        plant(orders(here), ran)
        now = verb.changed(here)
        with pytest.raises(RefusedError, match="written to since"):
            verb.take_back(here)
        assert verb.changed(here) == now


@pytest.mark.parametrize(
    "forged", ["rm -rf ~", "airflow-ckpt chain rewind --apply; rm -rf ~", "airflow-ckpt 'chain", ""]
)
def test_no_forged_command_of_a_chain_runs_another_program(forged: str) -> None:
    of = {"plan_id": "1; rm -rf ~", "arguments": "--stream a=/b; rm -rf ~", "again": forged}
    for action in ("undo", "rewind"):
        words = list(shlex.shlex(chain_command(action, of), posix=True, punctuation_chars=True))
        assert words[0] == "airflow-ckpt"
        assert ";" not in words
