"""Each kind of change, killed at every write."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import bury
from tests.support.checkpoints import Files, offsets_log, plant
from tests.support.kinds_of_changes import Verb, names
from tests.support.restores import loud_seal
from tests.support.watched_stores import WRITES, Killed, Life, watched

each_verb = pytest.mark.parametrize("name", names())


def is_sealed(files: Files) -> bool:
    return any(data.startswith(SEAL_PREFIX) for data in files.values())


def without_seals(files: Files) -> Files:
    return {path: data for path, data in files.items() if not data.startswith(SEAL_PREFIX)}


def killed(carry_out: Callable[[Location], Any], here: Location, writes: int) -> bool:
    """Carry something out in a process that dies after so many writes; whether it died."""
    dying, _ = watched(here, Life(writes).before)
    try:
        carry_out(dying)
    except Killed:
        bury(here)
        return True
    return False


def after_first_change(verb: Verb, here: Location) -> Callable[[Location], Any]:
    """The change, dying after the first file of the checkpoint was removed or written under the seal."""

    def run(_: Location) -> Any:
        changes = []

        def die(operation: str, path: str) -> None:
            if verb.changes(here, operation, path) and loud_seal(here / verb.checkpoint):
                changes.append(path)
                if len(changes) > 2:
                    raise Killed(path)

        return verb.carry_out(watched(here, die)[0])

    return run


def half_way(verb: Verb, here: Location) -> Location:
    """A change whose worker died after it had changed some files."""
    verb.begin(here)
    assert killed(after_first_change(verb, here), here, 10_000)
    return here


def half_undone(verb: Verb, here: Location) -> None:
    """Undo a change in a process that dies after it has put some files back."""
    verb.take_back(watched(here, dies_half_way(verb, here))[0])


def dies_half_way(verb: Verb, here: Location) -> Callable[[str, str], None]:
    """A process dies before it changes a second file of the checkpoint."""
    changes = []

    def die(operation: str, path: str) -> None:
        if verb.changes(here, operation, path) and "/offsets/" not in path:
            changes.append(path)
            if len(changes) > 1:
                raise Killed(path)

    return die


def started(verb: Verb, here: Location) -> Files:
    """The stream is started, and has logged one batch more."""
    checkpoint = here / verb.checkpoint
    number = inspect_target(checkpoint).newest_offsets + 1
    plant(checkpoint, {f"offsets/{number}": offsets_log()})
    return verb.changed(here)


def paused_before_its_fence(verb: Verb, here: Location, meanwhile: Callable[[], Any], what: Callable[..., Any]) -> Any:
    """Carry something out in a process that is suspended after it has planned, while others do something."""
    done = []

    def pause(operation: str, path: str) -> None:
        if not done and operation in WRITES | {"list"} and "/changes/" in path:
            done.append(path)
            meanwhile()

    return what(watched(here, pause)[0])


def document_of(here: Location) -> tuple[str, dict[str, Any]]:
    """Path and content of the only plan that is kept, but for those of undos."""
    path = next(p for p in sorted((here / "backups").walk("plans")) if "-undo" not in p)
    return path, json.loads((here / "backups").read(path))


def forge(here: Location, **changes: Any) -> None:
    path, document = document_of(here)
    (here / "backups").replace(path, json.dumps(document | changes).encode())


def marker_of(here: Location) -> str:
    return next(p for p in (here / "backups").walk("set-aside") if p.endswith("/COMPLETE"))
