"""Names of state files. State version V is the state after batch V-1: batch N reads version N and writes N+1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_ckpt_provider.storage.store import StoredFile

#: Directories of a partition that are no stores.
RESERVED = frozenset({"SSTs", "logs", "_metadata"})
_NAME = re.compile(r"(?P<version>\d+)(?:_(?P<id>[0-9a-fA-F-]{36}))?\.(?P<kind>delta|snapshot|zip|changelog)")


@dataclass(frozen=True, slots=True, order=True)
class StateVersion:
    """A version of one store, with the uuid that state checkpoint format 2 gives it.

    Several uuids with the same number are normal there: retries and rewinds leave them. Only those that a commit
    names count.
    """

    number: int
    unique_id: str | None = None

    def __str__(self) -> str:
        return str(self.number) if self.unique_id is None else f"{self.number}_{self.unique_id}"


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The state files of one store of one partition, by kind and version.

    :param directory: the store's directory, relative to the checkpoint.
    """

    directory: str
    deltas: Mapping[StateVersion, StoredFile]
    snapshots: Mapping[StateVersion, StoredFile]
    zips: Mapping[StateVersion, StoredFile]
    changelogs: Mapping[StateVersion, StoredFile]

    @property
    def newest(self) -> int:
        """Highest version number of any file; 0 without any."""
        kinds = (self.deltas, self.snapshots, self.zips, self.changelogs)
        return max((version.number for kind in kinds for version in kind), default=0)


def holds_state(names: Iterable[str]) -> bool:
    """Whether any of these is the name of a state file; quicker than sorting all of them."""
    return any((match := _NAME.fullmatch(name)) and int(match["version"]) > 0 for name in names)


def oldest_version(names: Iterable[str]) -> int | None:
    """The lowest version number of any state file among these names; ``None`` without any."""
    matches = (match for name in names if (match := _NAME.fullmatch(name)))
    return min((number for match in matches if (number := int(match["version"])) > 0), default=None)


def state_files(directory: str, files: Mapping[str, StoredFile]) -> StateFiles:
    """Sort the files of a store's directory by kind and version; other files are left out."""
    kinds: dict[str, dict[StateVersion, StoredFile]] = {"delta": {}, "snapshot": {}, "zip": {}, "changelog": {}}
    for name, file in files.items():
        if match := _NAME.fullmatch(name):
            version, unique_id, kind = match.groups()
            kinds[kind][StateVersion(int(version), unique_id)] = file
    return StateFiles(directory, kinds["delta"], kinds["snapshot"], kinds["zip"], kinds["changelog"])
