"""What of a repository is proven: signatures, the chain of audit records, the numbers of backups, and a pin of the newest ones.

Reads every document that is signed, once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from airflow_ckpt_provider.backup.expire import EXPIRE, EXPIRE_BEGUN, STOPPED
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import readable
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import LARGE
from airflow_ckpt_provider.storage.signatures import SIGNATURES, SIGNED, is_signed

#: Kind of an audit record -> its key of the backups that an expire has removed, or was about to remove.
_EXPIRES = {EXPIRE: "removed", EXPIRE_BEGUN: "removing"}


@dataclass(frozen=True, slots=True)
class Trust:
    """What is proven.

    :param signed: id of a key -> paths of the documents that it has signed. Where no keys are trusted, the signatures say so, and
        are not checked.
    :param unsigned: paths of the others; findings where keys are trusted.
    :param findings: what is missing, changed or not signed, in words.
    :param notes: what is no fault, but good to know.
    :param pin: the newest backups, and those that an expire was about to remove and that are still there, for the next check: see
        :func:`check_trust`.
    """

    signed: Mapping[str, tuple[str, ...]]
    unsigned: tuple[str, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    pin: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            "signed": {key: list(paths) for key, paths in self.signed.items()},
            "unsigned": list(self.unsigned),
            "findings": list(self.findings),
            "notes": list(self.notes),
            "pin": dict(self.pin),
        }


@dataclass(frozen=True, slots=True)
class _Document:
    """A document that is signed, or should be.

    :param key: id of the key that has signed it; ``None``: nobody has.
    :param record: what it says, where it is an audit record; else empty.
    """

    path: str
    sha256: str
    key: str | None
    record: dict[str, Any]


def check_trust(repository: Repository, *, pin: object = None) -> Trust:
    """See what of a repository is proven.

    :param repository: the repository, opened with the keys that are trusted.
    :param pin: :attr:`Trust.pin` of an earlier check; ``None``: there was none. Where that one's newest backup of a stream is
        missing, and no expire has removed it, that is a finding, and the pin stays as it is. So is a backup that is missing
        now, where that check saw it there after an expire had begun to remove it: that record explains it no longer.
    :raises RefusedError: the pin is none, or of another repository.
    """
    pinned, still_there = _parsed_pin(pin, repository)
    checks = repository.location.checks_signatures
    read = _read(repository)
    documents = [each for each in read if isinstance(each, _Document)]
    unsigned = tuple(sorted(each.path for each in documents if not each.key))
    findings = [each for each in read if isinstance(each, str)]
    findings += [f"{path} is not signed by a trusted key" for path in unsigned if checks]
    records = [each for each in documents if each.record and (each.key or not checks)]
    notes: list[str] = []
    findings += _chain(records, notes)
    removed = _Removed.of(records, findings, still_there)
    there: dict[str, set[str]] = {}
    newest: dict[str, dict[str, Any]] = {}
    for name in sorted({*repository.names(), *pinned}):
        backup_ids = repository.backup_ids(name)
        there[name] = set(backup_ids)
        manifests = list(readable(repository, name, backup_ids, with_files=False))
        known = [m for m in manifests if isinstance(m, Manifest)]
        numbers = removed.numbers.get(name, set())
        findings += _gaps(name, {m.sequence for m in known}, numbers, len(manifests) - len(known))
        notes += _same_numbers(name, known)
        last = max(known, key=lambda m: (m.sequence, m.backup_id), default=None)
        now = {"sequence": last.sequence, "backup_id": last.backup_id} if last else None
        before = pinned.get(name)
        if before and before["backup_id"] not in {m.backup_id for m in known}:
            if before["backup_id"] not in removed.ids.get(name, ()):  # another backup may have got its number
                found = f"the newest is {now['backup_id']} (number {now['sequence']})" if now else "there is none"
                findings.append(
                    f"backup {before['backup_id']} of {name} (number {before['sequence']}) is pinned, is missing or cannot be "
                    f"read, and no expire has removed it; {found}"
                )
                now = before
            elif now is None or now["sequence"] < before["sequence"]:
                now = before
        if now:
            newest[name] = now
    keys = sorted({each.key for each in documents if each.key})
    signed = {key: tuple(sorted(each.path for each in documents if each.key == key)) for key in keys}
    removing = _still_there(removed, there, still_there, notes)
    for each in still_there:
        newest_before = pinned.get(each.name, {}).get("backup_id")
        if each in removing and each.backup_id not in {*there.get(each.name, ()), newest_before}:
            findings.append(
                f"backup {each.backup_id} of {each.name} was there at an earlier check, after an expire had begun to remove it "
                f"({each.record}); it is missing, and no audit record of an expire explains it"
            )
    made = {
        "repository_id": repository.repository_id,
        "streams": newest,
        "removing": [{"name": e.name, "backup_id": e.backup_id, "record": e.record} for e in removing],
    }
    return Trust(signed, unsigned, tuple(findings), tuple(notes), made)


def sign_all(repository: Repository) -> tuple[str, ...]:
    """Sign every document that no trusted key has signed, as somebody who has seen that they are right; return their paths.

    :param repository: opened with a signing key.
    :raises RefusedError: there is no signing key.
    """
    signing = repository.location.signing
    if signing is None or signing.secret is None:
        raise RefusedError("there is no key to sign with", hint="give --signing-key-file FILE")
    everything = replace(repository.location, signing=None)
    wanted = check_trust(repository).unsigned

    def sign(path: str) -> None:
        signing.sign(repository.location, path, everything.read_document(path, most=LARGE))

    in_parallel(sign, wanted)
    return wanted


def _read(repository: Repository) -> list[_Document | str]:
    place = repository.location
    unchecked = replace(place, signing=None)
    signatures: dict[str, set[str]] = {}
    for file in place.sweep(SIGNATURES):
        path, _, name = file.path.removeprefix(f"{SIGNATURES}/").rpartition("/")
        signatures.setdefault(path, set()).add(name.removesuffix(".json"))

    def read(path: str) -> _Document | str | None:
        """A document without its content, which may be long; in words, why it cannot be read; ``None``: it is gone."""
        try:
            data = unchecked.read_document(path, most=LARGE)
            record = load_json(data) if path.startswith("audit/") else {}
            if not isinstance(record, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            return None
        except CkptError as e:
            return e.message
        except ValueError as e:
            return f"{path} cannot be read: {e}"
        sha256 = hashlib.sha256(data).hexdigest()
        if place.signing and place.checks_signatures:
            return _Document(path, sha256, place.signing.signed_by(place, path, data), record)
        keys = (name.partition("-")[2] for name in signatures.get(path, ()) if name.startswith(f"{sha256}-"))
        return _Document(path, sha256, next(keys, None), record)

    paths = [path for each in SIGNED for path in repository.whole_files(each.rstrip("/")) if is_signed(path)]
    return [document for document in in_parallel(read, paths) if document is not None]


def _chain(records: Sequence[_Document], notes: list[str]) -> list[str]:
    """What is wrong with the chain of audit records: each names the SHA-256 of the one before."""
    there = {each.sha256 for each in records}
    previous = {each.path: str(each.record["previous"]) for each in records if "previous" in each.record}
    for sha256, count in Counter(previous.values()).items():
        if count > 1:
            which = ", ".join(sorted(path for path, each in previous.items() if each == sha256))
            notes.append(f"{which} follow the same audit record: they were written at once, or a clock was wrong")
    return [
        f"{path} follows an audit record that is missing or was changed"
        for path, sha256 in sorted(previous.items())
        if sha256 and sha256 not in there
    ]


@dataclass(frozen=True, slots=True)
class _Intent:
    """A backup that an expire was about to remove, and has perhaps not.

    :param record: path of the audit record that says so.
    """

    name: str
    backup_id: str
    record: str


@dataclass(frozen=True, slots=True)
class _Removed:
    """What expires have removed.

    :param numbers: numbers of backups, by stream. Those of a stopped expire are here though a backup of them was there since:
        that it is missing is noticed by its id.
    :param ids: ids of backups, by stream.
    :param intents: what expires were about to remove that have not ended.
    """

    numbers: dict[str, set[int]] = field(default_factory=dict)
    ids: dict[str, set[str]] = field(default_factory=dict)
    intents: list[_Intent] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[_Document], findings: list[str], still_there: Collection[_Intent]) -> _Removed:
        """By the audit records of expires. What one was about to remove counts only until the record of its end.

        :param still_there: what an earlier check has seen there in spite of that record: it does not explain it.
        :param findings: gets the records that make no sense; these explain nothing.
        """
        found = cls()
        begun: list[tuple[_Document, dict[str, list[int]], list[tuple[str, str]]]] = []
        ended: set[str] = set()
        for each in records:
            kind = str(each.record.get("kind"))
            key = _EXPIRES.get(kind)
            if key is None:
                continue
            try:
                numbers, ids = _parsed_expire(each.record, key)
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                what = f"{type(e).__name__}: {e}"
                findings.append(
                    f"{each.path} does not say properly what its expire has removed ({what}): it explains nothing"
                )
                continue
            if kind == EXPIRE_BEGUN:
                begun.append((each, numbers, ids))
                continue
            found._add(numbers, ids)
            if not each.record.get(STOPPED):
                ended.add(str(each.record.get("plan_id")))
        for each, numbers, ids in begun:
            if str(each.record.get("plan_id")).rpartition("-")[0] not in ended:
                intents = [_Intent(name, backup_id, each.path) for name, backup_id in ids]
                found.intents.extend(intents)
                found._add(numbers, [(e.name, e.backup_id) for e in intents if e not in still_there])
        return found

    def _add(self, numbers: Mapping[str, Iterable[int]], ids: Iterable[tuple[str, str]]) -> None:
        for name, of_stream in numbers.items():
            self.numbers.setdefault(name, set()).update(of_stream)
        for name, backup_id in ids:
            self.ids.setdefault(name, set()).add(backup_id)


def _still_there(
    removed: _Removed, there: Mapping[str, Collection[str]], before: Iterable[_Intent], notes: list[str]
) -> list[_Intent]:
    """What an expire was about to remove and is still there, or was at an earlier check and is not explained.

    :param there: ids of the backups, by stream.
    :param before: what was there at the earlier check.
    :param notes: gets what is there.
    """
    found = [each for each in removed.intents if each.backup_id in there.get(each.name, ())]
    notes += [
        f"backup {each.backup_id} of {each.name} was about to be removed by an expire ({each.record}) and is still there"
        for each in found
    ]
    lost = [each for each in before if each.backup_id not in there.get(each.name, ())]
    return found + [each for each in lost if each.backup_id not in removed.ids.get(each.name, ())]


def _parsed_expire(record: Mapping[str, Any], key: str) -> tuple[dict[str, list[int]], list[tuple[str, str]]]:
    """Numbers by stream, and names with ids.

    :param key: of the names with ids.
    :raises ValueError: it is no record of an expire; or another error of those that a wrong type gives.
    """
    numbers, removed = record.get("sequences", {}), record.get(key, [])
    if not isinstance(removed, list):
        raise ValueError(f"{key} is no list")
    for of_stream in numbers.values():
        if not isinstance(of_stream, list) or not all(type(number) is int for number in of_stream):
            raise ValueError("a number is none")
    ids = [(each["name"], each["backup_id"]) for each in removed]
    if not all(isinstance(text, str) for each in ids for text in each):
        raise ValueError("a name or an id is none")
    return dict(numbers), ids


def _same_numbers(name: str, known: Iterable[Manifest]) -> list[str]:
    """Numbers that several backups have, as those that were copied by earlier versions or made at once."""
    ids: dict[int, list[str]] = {}
    for manifest in known:
        if manifest.sequence:  # those of version 0.1.0 have none
            ids.setdefault(manifest.sequence, []).append(manifest.backup_id)
    return [
        f"backups {', '.join(same[:-1])} and {same[-1]} of {name} have the same number, {number}: that one of them is missing "
        "would not be noticed by its number"
        for number, same in sorted(ids.items())
        if len(same) > 1
    ]


def _gaps(name: str, there: set[int], removed: set[int], unreadable: int) -> list[str]:
    """Numbers that no backup has, and that no expire has removed. What cannot be read may have one of them."""
    known = sorted({0} | there | {n for n in removed if n < max(there, default=0)})
    gaps = [(a + 1, b - 1) for a, b in pairwise(known) if b - a > 1]
    if sum(b - a + 1 for a, b in gaps) <= unreadable:
        return []
    return [
        f"{f'backup number {a}' if a == b else f'backups number {a} to {b}'} of {name}: missing, and no audit record of an "
        "expire explains it"
        for a, b in gaps
    ]


def _parsed_pin(pin: object, repository: Repository) -> tuple[dict[str, dict[str, Any]], list[_Intent]]:
    """The newest backups by stream, and what was still there though an expire was about to remove it."""
    if pin is None:
        return {}, []
    try:
        if not isinstance(pin, Mapping) or not isinstance(pin["streams"], Mapping):
            raise ValueError("it has no streams")
        streams = {str(n): {"sequence": p["sequence"], "backup_id": p["backup_id"]} for n, p in pin["streams"].items()}
        if not all(type(p["sequence"]) is int and isinstance(p["backup_id"], str) for p in streams.values()):
            raise ValueError("a number or an id is none")
        removing = pin.get("removing", [])  # pins of earlier versions have none
        if not isinstance(removing, list):
            raise ValueError("removing is no list")
        intents = [_Intent(each["name"], each["backup_id"], each["record"]) for each in removing]
        if not all(isinstance(text, str) for e in intents for text in (e.name, e.backup_id, e.record)):
            raise ValueError("a name, an id or a record is none")
        whose = pin["repository_id"]
    except (ValueError, KeyError, TypeError) as e:
        raise RefusedError(
            f"the pin cannot be read ({type(e).__name__}: {e})",
            hint="give what an earlier check has returned, or start from the beginning",
        ) from e
    if whose != repository.repository_id:
        raise RefusedError(
            f"the pin is of repository {whose}, and {repository.location} is {repository.repository_id}",
            hint="check the address; to pin this repository, start from the beginning",
        )
    return streams, intents
