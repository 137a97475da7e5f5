"""Changing the keys of an encrypted repository: add, rotate, remove, list; export them, and put them back.

Every step leaves the repository open to at least one key that was proven to open it. A key is added by a new file of wrapped
keys, which is read back and tried before the verb reports success. A key is removed by a new file without it. Then the files
that still hold it are deleted, and ``repository.json`` is replaced by one write. If the process is killed, run the same command
again to finish.

The data key never changes. A removed key still opens a copy of its wrapped key that somebody has made before. To shut out who has
both, copy the backups into a new repository.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from airflow_ckpt_provider.backup.marker import MARKER
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError, RefusedError, RepositoryError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.encrypted_store import decrypted
from airflow_ckpt_provider.storage.key_sets import (
    CIPHER,
    KEYS,
    KeySet,
    data_key_of,
    first_key,
    key_set_document,
    key_set_path,
    key_sets,
)
from airflow_ckpt_provider.storage.keys import WrappedKey
from airflow_ckpt_provider.storage.location import Location

_EXPORT_FORMAT, _EXPORT_VERSION = "airflow-ckpt-key-export", 1
_REMOVED = "key removed"
#: How often the next number may be taken by somebody else before we give up.
_TRIES = 20
_IMPORT = "put them back from an export: airflow-ckpt key import REPOSITORY --file EXPORT"


@dataclass(frozen=True, slots=True)
class RepositoryKey:
    """A key of a repository, as it is listed; without any secret.

    :param id: what to call it by.
    :param added_at: when it was added, ISO 8601; empty for the key that the repository was made with.
    :param added_by: who added it.
    :param note: what it is for.
    :param is_given: whether the repository was opened with this key; ``None``: it was opened without a key.
    """

    id: str
    added_at: str
    added_by: str
    note: str
    is_given: bool | None

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt key list --json``."""
        return {
            "id": self.id,
            "added_at": self.added_at or None,
            "added_by": self.added_by,
            "note": self.note,
            "is_given": self.is_given,
        }


@dataclass(frozen=True, slots=True)
class _Ring:
    """The keys of a repository as they stand.

    :param marker: ``repository.json``.
    :param keys: the keys that are valid.
    :param sets: files of wrapped keys, newest first.
    """

    marker: dict[str, Any]
    keys: tuple[WrappedKey, ...]
    sets: tuple[KeySet, ...]

    @property
    def number(self) -> int:
        return self.sets[0].number if self.sets else 0

    @property
    def first(self) -> WrappedKey | None:
        return first_key(self.marker["encryption"])

    def of(self, key: bytes) -> WrappedKey | None:
        """The wrapped key that one of the owner's keys opens."""
        return next((each for each in self.keys if each.unwrapped(key) is not None), None)


def list_keys(location: Location) -> list[RepositoryKey]:
    """List the keys of a repository, oldest first. It needs no key; with one, the entry of that key is marked.

    :param location: the repository.
    :raises RepositoryError: it is not encrypted, cannot be read, or the key is none of its keys.
    """
    if location.key is not None:
        Repository.open(location)
    ring = _ring(location)
    given = ring.of(location.key) if location.key is not None else None
    return [_shown(each, given, asked=location.key is not None) for each in ring.keys]


def add_key(location: Location, new: bytes, *, note: str = "", made_by: str = "") -> RepositoryKey:
    """Add a key to a repository. Adding the same key again changes nothing.

    :param location: the repository, with a key that it has already.
    :param new: the key to add.
    :param note: what it is for.
    :param made_by: who adds it, for the list and the audit record.
    :raises RepositoryError: the key that was given is none of the repository's.
    """
    repository, data_key = _opened(location)
    for _ in range(_TRIES):
        ring = _ring(location)
        if (there := ring.of(new)) is not None:
            return _shown(there, None, asked=False)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        made = WrappedKey.make(new, data_key, added_at=at, added_by=made_by, note=note)
        if _write(location, ring, (*ring.keys, made)):
            break
    else:
        raise _busy(location)
    found = _ring(location)
    if (
        made.id not in {each.id for each in found.keys}
        or data_key_of(location, found.marker["encryption"], new) != data_key
    ):
        raise RepositoryError(
            f"{location}: the key was written, and does not open the repository", hint="run the same command again"
        )
    _record(repository, "key added", made.id, made_by)
    return _shown(made, None, asked=False)


def remove_key(location: Location, key_id: str, *, made_by: str = "") -> RepositoryKey:
    """Remove a key from a repository. If the process was killed, call it again to finish.

    :param location: the repository, with a key that stays.
    :param key_id: id of the key to remove, from :func:`list_keys`.
    :param made_by: who removes it, for the audit record.
    :raises RefusedError: there is no such key, it is the last one, or the one that was given.
    :raises RepositoryError: the key that was given is none of the repository's.
    """
    repository, data_key = _opened(location)
    for _ in range(_TRIES):
        ring = _ring(location)
        going = next((each for each in ring.keys if each.id == key_id), None)
        if going is None:
            # Removed by an attempt that was killed before it had deleted what still holds the key.
            going = next((each for each in _everywhere(ring) if each.id == key_id), None)
            if going is None:
                if any((r.get("kind"), r.get("key")) == (_REMOVED, key_id) for r in repository.records()):
                    return RepositoryKey(key_id, "", "", "", None)  # by an earlier attempt, to its end
                known = ", ".join(each.id for each in ring.keys)
                raise RefusedError(
                    f"{location} has no key {key_id}", hint=f"its keys are {known}: airflow-ckpt key list"
                )
            break
        if len(ring.keys) == 1:
            raise RefusedError(
                f"{key_id} is the only key of {location}: without it nobody could read the backups",
                hint="add another key first: airflow-ckpt key add",
            )
        if location.key is not None and going.unwrapped(location.key) is not None:
            raise RefusedError(
                f"{key_id} is the key that was given: after its removal nothing would prove that another one opens {location}",
                hint="give a key that stays, by --key-file or the connection",
            )
        if _write(location, ring, tuple(each for each in ring.keys if each.id != key_id)):
            break
    else:
        raise _busy(location)
    # Before what still holds the key is deleted: afterwards nothing would tell that it was there.
    _record(repository, _REMOVED, key_id, made_by)
    _forget(location, data_key)
    return _shown(going, None, asked=False)


def rotate_key(location: Location, new: bytes, *, note: str = "", made_by: str = "") -> RepositoryKey:
    """Replace the key that was given by another one. If the process was killed, call it again to finish.

    :param location: the repository, with the key to replace.
    :param new: the key that replaces it.
    :param note: what it is for.
    :param made_by: who does it, for the list and the audit records.
    :return: the new key.
    :raises RefusedError: both keys are the same one.
    :raises RepositoryError: the key that was given is none of the repository's.
    """
    if new == location.key:
        raise RefusedError("the new key is the old one", hint="make another one: openssl rand -base64 32")
    renewed = replace(location, key=new)
    try:
        _opened(location)
    except RepositoryError:
        # An earlier attempt may have come to its end, and only its answer was lost.
        ring = _ring(location)
        if (there := ring.of(new)) is None:
            raise
        return _shown(there, None, asked=False)
    made = add_key(location, new, note=note, made_by=made_by)
    old = location.key
    for each in _everywhere(_ring(location)):
        if old is not None and each.unwrapped(old) is not None:
            remove_key(renewed, each.id, made_by=made_by)
    return made


def export_keys(location: Location) -> dict[str, Any]:
    """The wrapped keys of a repository with all that is needed to put them back, to be kept outside it.

    There is no secret in it for who has none of the owner's keys.

    :param location: the repository, with one of its keys, which is tried.
    :raises RepositoryError: the key is none of the repository's, or it is not encrypted.
    """
    _opened(location)
    ring = _ring(location)
    return {
        "format": _EXPORT_FORMAT,
        "version": _EXPORT_VERSION,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "repository": location.uri,
        "marker": ring.marker,
        "keys": [each.to_json() for each in ring.keys],
    }


def import_keys(location: Location, exported: bytes, *, made_by: str = "") -> list[RepositoryKey]:
    """Put the wrapped keys of a repository back from an export. Keys that are there stay.

    :param location: the repository, with one of the owner's keys that the export holds.
    :param exported: the export, see :func:`export_keys`.
    :param made_by: who does it, for the audit record.
    :return: the keys that the repository has now.
    :raises RefusedError: it is no export; the key opens none of its keys; the place is another repository, or one whose files
        this key does not decrypt. Nothing is changed.
    """
    marker, keys = _parsed_export(exported)
    key = location.key
    if key is None:
        raise RefusedError("an import needs a key, to try what it puts back", hint="give --key-file")
    data_key = next((found for each in keys if (found := each.unwrapped(key)) is not None), None)
    if data_key is None:
        raise RefusedError(
            f"the key that was given opens none of the {len(keys)} keys of the export",
            hint="give the key that was in use then",
        )
    there = _marker_if_readable(location)
    if there is not None and there.get("id") != marker["id"]:
        raise RefusedError(
            f"{location} is repository {there.get('id')}, and the export is of {marker['id']}",
            hint="name the right one",
        )
    _prove(location, marker, keys, data_key)
    if there is None:
        _put_marker_back(location, marker)
    elif not isinstance(said := there.get("encryption"), Mapping) or said.get("cipher") != CIPHER:
        location.replace(MARKER, json.dumps({**there, "encryption": marker["encryption"]}).encode())
    for _ in range(_TRIES):
        ring = _ring(location, lenient=True)
        more = tuple(each for each in keys if each.id not in {known.id for known in ring.keys})
        if not more and (ring.sets == () or ring.sets[0].keys is not None):
            break
        if _write(location, ring, (*ring.keys, *more)):
            break
    else:
        raise _busy(location)
    repository = Repository.open(location)
    _record(repository, "keys imported", ", ".join(each.id for each in keys), made_by)
    return list_keys(location)


def _opened(location: Location) -> tuple[Repository, bytes]:
    """Open a repository and unwrap its data key."""
    repository = Repository.open(location)
    encryption = _marker(location).get("encryption")
    if encryption is None or location.key is None:
        raise _not_encrypted(location)
    return repository, data_key_of(location, encryption, location.key)


def _marker(location: Location) -> dict[str, Any]:
    marker = load_json(location.read_document(MARKER))
    if not isinstance(marker, dict):
        raise ValueError("it is no object")
    return marker


def _marker_if_readable(location: Location) -> dict[str, Any] | None:
    try:
        marker = _marker(location)
    except (FileNotFoundError, ValueError):
        return None
    return marker if "id" in marker else None


def _ring(location: Location, *, lenient: bool = False) -> _Ring:
    """The keys as they stand.

    :param lenient: of a damaged newest file the keys of the ones before it are taken.
    """
    try:
        marker = _marker(location)
    except (FileNotFoundError, ValueError) as e:
        raise RepositoryError(f"{location}/{MARKER} cannot be read: {e}", hint=_IMPORT) from e
    if not isinstance(marker.get("encryption"), Mapping):
        raise _not_encrypted(location)
    sets = tuple(key_sets(location))
    if sets and sets[0].keys is None and not lenient:
        raise RepositoryError(f"{location}/{sets[0].path} cannot be read: {sets[0].problem}", hint=_IMPORT)
    valid = next((each.keys for each in sets if each.keys is not None), None)
    first = first_key(marker["encryption"])
    return _Ring(marker, valid if valid is not None else (first,) if first else (), sets)


def _everywhere(ring: _Ring) -> list[WrappedKey]:
    """Every key that any file still holds, each once."""
    first = [ring.first] if ring.first else []
    return list({each.id: each for each in (*first, *(key for of in ring.sets for key in of.keys or ()))}.values())


def _write(location: Location, ring: _Ring, keys: tuple[WrappedKey, ...]) -> bool:
    """Write the next file of wrapped keys; whether nobody else took its number."""
    try:
        location.create(key_set_path(ring.number + 1), json.dumps(key_set_document(keys)).encode())
    except FileExistsError:
        return False
    return True


def _forget(location: Location, data_key: bytes) -> None:
    """Delete what still holds keys that are not valid any more, once the newest file was read back and tried."""
    ring = _ring(location)
    if location.key is None or all(each.unwrapped(location.key) != data_key for each in ring.keys):
        raise RepositoryError(
            f"{location}: the newest file of keys does not hold the key that was given: nothing was deleted",
            hint="somebody else has changed the keys at the same time; see airflow-ckpt key list",
        )
    if ring.first is not None and ring.first.id not in {each.id for each in ring.keys}:
        encryption = {name: value for name, value in ring.marker["encryption"].items() if name != "wrapped_key"}
        location.replace(MARKER, json.dumps({**ring.marker, "encryption": encryption}).encode())
    for old in ring.sets[1:]:
        location.delete(old.path)


def _prove(location: Location, marker: Mapping[str, Any], keys: Iterable[WrappedKey], data_key: bytes) -> None:
    """See that a data key decrypts what is in a repository."""
    plain = replace(location, key=None)
    some = list(islice((file.path for file in plain.sweep() if _is_encrypted(file.path)), _TRIES))
    if not some:
        raise RefusedError(
            f"{location} holds no encrypted file: whether the export is of this place cannot be proven",
            hint="name the place that has the files of the repository",
        )
    key = location.key
    opening = next(each for each in keys if key is not None and each.unwrapped(key) == data_key)
    opened = decrypted(location, {"cipher": CIPHER, "wrapped_key": opening.to_json()["wrapped_key"]})
    for path in some:
        with suppress(CkptError):
            opened.read(path)
            return
    raise RefusedError(
        f"the keys of the export do not decrypt {location}/{some[0]}: it is of another repository, or its files are damaged",
        hint=f"the export is of repository {marker['id']}; see whether this is the place",
    )


def _is_encrypted(path: str) -> bool:
    return path != MARKER and not path.startswith(f"{KEYS}/") and "/." not in f"/{path}"


def _put_marker_back(location: Location, marker: Mapping[str, Any]) -> None:
    data = json.dumps(marker).encode()
    try:
        location.create(MARKER, data)
    except FileExistsError:  # one that cannot be read
        location.replace(MARKER, data)


def _parsed_export(exported: bytes) -> tuple[dict[str, Any], tuple[WrappedKey, ...]]:
    try:
        content = load_json(exported)
        if (content["format"], content["version"]) != (_EXPORT_FORMAT, _EXPORT_VERSION):
            raise ValueError(f"its format is {content['format']!r} version {content['version']!r}")
        marker, keys = content["marker"], tuple(WrappedKey.from_json(each) for each in content["keys"])
        if not keys or not isinstance(marker["id"], str) or marker["encryption"]["cipher"] != CIPHER:
            raise ValueError("it lacks the keys or the id of the repository, or is of another cipher")
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise RefusedError(
            f"this is no export of keys ({type(e).__name__}: {e})",
            hint="give a file that `airflow-ckpt key export` wrote",
        ) from e
    return dict(marker), keys


def _record(repository: Repository, what: str, key_id: str, made_by: str) -> None:
    repository.record(new_plan_id(), {"kind": what, "key": key_id, "made_by": made_by})


def _shown(key: WrappedKey, given: WrappedKey | None, *, asked: bool) -> RepositoryKey:
    is_given = (given is not None and given.id == key.id) if asked else None
    return RepositoryKey(key.id, key.added_at, key.added_by, key.note, is_given)


def _not_encrypted(location: Location) -> RepositoryError:
    return RepositoryError(
        f"{location} is not encrypted: it has no keys", hint="copy its backups into an encrypted one: airflow-ckpt copy"
    )


def _busy(location: Location) -> RefusedError:
    return RefusedError(
        f"{location}: others change its keys all the time", hint="see who does, and run the same command again"
    )
