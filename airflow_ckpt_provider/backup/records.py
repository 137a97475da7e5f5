"""The plans and audit records of a repository: what changes of checkpoints are to do, and what they did."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from airflow_ckpt_provider.errors import DamagedFileError, RefusedError, RepositoryError, TooLargeError, UntrustedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import LARGE, Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import zoned_time

log = logging.getLogger(__name__)

#: Ids of plans name files.
_PLAN_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._=+-]*")


class Records:
    """The plans and audit records of a repository.

    :param location: the repository.
    """

    def __init__(self, location: Location) -> None:
        self.location = location

    def whole_files(self, directory: str) -> dict[str, StoredFile]:
        """The files below a directory by their path; half a file that a killed process left has a hidden name, and is none."""
        return {path: file for path, file in self.location.walk(directory).items() if "/." not in path}

    def keep_plan(self, plan_id: str, document: Mapping[str, Any]) -> None:
        """Keep a plan with all that carrying it out needs, before its first change.

        One of the same id that was kept before and never begun is replaced; a plan that was begun is not kept again.

        :raises RefusedError: the id could leave the directory of plans.
        """
        checked_plan_id(plan_id)
        content = json.dumps({"plan_id": plan_id, **document}).encode()
        try:
            self.location.create(_plan_path(plan_id), content)
        except FileExistsError:
            self.location.replace(_plan_path(plan_id), content)

    def kept_plan(self, plan_id: str) -> dict[str, Any] | None:
        """What :meth:`keep_plan` was given, or ``None`` if no plan of that id was begun.

        :raises RepositoryError: the file is damaged, or that of another plan.
        """
        if not _PLAN_ID.fullmatch(plan_id):
            return None
        path = _plan_path(plan_id)
        try:
            document = self.read_object(path, "plan_id")
        except FileNotFoundError:
            return None
        if document["plan_id"] != plan_id:
            raise RepositoryError(
                f"{self.location}/{path} is the document of plan {document['plan_id']}",
                hint="put the file back as it was: somebody has renamed or changed it",
            )
        return document

    def read_record(self, path: str) -> dict[str, Any]:
        """Read one audit record.

        :param path: its path in the repository.
        :raises RepositoryError: it is damaged.
        """
        return self.read_object(path, "plan_id", time="at")

    def read_records(self, paths: Iterable[str]) -> list[dict[str, Any]]:
        """Read audit records, see :meth:`read_record`; one that is not signed by a trusted key is logged and left out."""

        def read(path: str) -> dict[str, Any] | None:
            try:
                return self.read_record(path)
            except UntrustedError as e:
                log.warning("%s: it is ignored", e.message)
                return None

        return list(filter(None, in_parallel(read, paths)))

    def read_object(self, path: str, *keys: str, time: str | None = None) -> dict[str, Any]:
        """Read a JSON object with these texts in it.

        :param path: its path in the repository.
        :param time: key of a time with a time zone.
        :raises FileNotFoundError: it does not exist.
        :raises RepositoryError: it is damaged.
        """
        data = self.location.read_document(path, most=LARGE)
        try:
            value = load_json(data)
            if not all(isinstance(value[key], str) for key in keys):
                raise ValueError(f"{' or '.join(keys)} is no text")
            if time:
                zoned_time(value[time])
        except (ValueError, KeyError, TypeError, IndexError) as e:
            raise RepositoryError(
                f"{self.location}/{path} cannot be read ({type(e).__name__}: {e}): {data[:80]!r}",
                hint="the file was damaged: put it back from a copy of the repository. Without one, move it out of the "
                "repository; what it says is then not known",
            ) from e
        found: dict[str, Any] = value
        return found

    def record(self, plan_id: str, facts: dict[str, Any]) -> None:
        """Write an audit record: who changed what, and why. It names the one before, so that one that is gone is noticed."""
        now = datetime.now(UTC)
        path = f"audit/{now.strftime('%Y%m%dT%H%M%SZ')}-{plan_id}.json"
        previous = next(filter(None, map(self._newest_hash, self._audit_by_second())), "")
        document = {"at": now.isoformat(), "plan_id": plan_id, "previous": previous, **facts}
        with suppress(FileExistsError):  # the same plan, carried to its end a second time within this second
            self.location.create(path, json.dumps(document).encode())

    def _audit_by_second(self) -> Iterator[list[str]]:
        """Paths of the audit records of each second, newest first: names have seconds, the records have microseconds."""

        def second(path: str) -> str:
            return path.partition("-")[0]

        for _, of_one_second in groupby(sorted(self.whole_files("audit"), reverse=True), key=second):
            yield list(of_one_second)

    def _newest_hash(self, paths: Iterable[str]) -> str | None:
        """SHA-256 of the newest of some audit records; ``None``: none is signed by a trusted key, or can be read."""
        found: list[tuple[str, str]] = []
        for path in paths:
            try:
                data = self.location.read_document(path, most=LARGE)
            except (DamagedFileError, TooLargeError, FileNotFoundError):
                continue
            try:
                at = str(load_json(data)["at"])
            except (ValueError, KeyError, TypeError):
                at = ""
            found.append((at, hashlib.sha256(data).hexdigest()))
        return max(found)[1] if found else None

    def records(self) -> Iterator[dict[str, Any]]:
        """Audit records, newest first."""
        for of_one_second in self._audit_by_second():
            records = self.read_records(of_one_second)
            yield from sorted(records, key=lambda record: str(record["at"]), reverse=True)

    def audit(self, made_by: str) -> dict[str, Any] | None:
        """The newest audit record of a run, or ``None``; lets a retried task find its own work."""
        return next((record for record in self.records() if record.get("made_by") == made_by), None)

    def audit_of(self, plan_id: str) -> dict[str, Any] | None:
        """The audit record of a plan, or ``None``. Reads no other one.

        :param plan_id: the plan.
        """
        paths = [file.path for file in self.location.list("audit").files]
        return next(iter(self.read_records([path for path in paths if path.endswith(f"-{plan_id}.json")])), None)


def checked_plan_id(plan_id: str) -> str:
    """Return the id of a plan if it can be one: a seal, a record or a plan may name another.

    :raises RefusedError: it could leave its directory.
    """
    if not _PLAN_ID.fullmatch(plan_id):
        raise RefusedError(f"{plan_id!r} cannot be the id of a plan", hint="use letters, digits, '.', '_' and '-'")
    return plan_id


def new_plan_id() -> str:
    """Make an id for a plan: short enough to be read out on the telephone."""
    return uuid.uuid4().hex[:8]


def _plan_path(plan_id: str) -> str:
    return f"plans/{plan_id}.json"
