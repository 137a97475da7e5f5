"""Each kind of change, killed at every write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import bury
from tests.support.checkpoints import Files
from tests.support.kinds_of_changes import Verb, names
from tests.support.restores import loud_seal
from tests.support.watched_stores import Killed, Life, watched

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


def _after_first_change(verb: Verb, here: Location) -> Callable[[Location], Any]:
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
