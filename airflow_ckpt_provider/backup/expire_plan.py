"""What an expire would remove, and why everything else stays. Reads only.

The rules (:mod:`~airflow_ckpt_provider.backup.retention`) say what they want to keep. Beyond that these always stay, of each
stream: held backups; the newest that passed a verify, and the newest whose contents were all read; the last that a drill
restored and ran on; the newest whose sources still have what it would read next; the safety backup of a restore that has not
ended; and whatever is dated in the future, for somebody's clock is wrong there. Future ones take no place in the rules
either, or a clock that once went ahead would push all good backups out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.backup.drills import last_drill
from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER, Manifest
from airflow_ckpt_provider.backup.notes import Hold, Verified, holds, verifications
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.backup.retention import Policy, reasons_to_keep
from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, RefusedError
from airflow_ckpt_provider.verdict import Usefulness, Verdict

#: Given the facts of manifests, says what their sources still have.
AskSources = Callable[[Sequence[Mapping[str, Any]]], Sequence[Usefulness]]


@dataclass(frozen=True, slots=True)
class Backup:
    """What retention knows of a backup."""

    name: str
    backup_id: str
    created: datetime
    batch_id: int
    bytes: int
    tags: Mapping[str, str]
    claim: str
    sources: Usefulness = Usefulness.UNKNOWN
    verified: Verified | None = None
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one backup.

    :param keep: whether it stays.
    :param reasons: why.
    """

    backup: Backup
    keep: bool
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The decision as plain JSON."""
        b = self.backup
        return {
            "backup_id": b.backup_id,
            "name": b.name,
            "created": b.created.isoformat(),
            "batch_id": b.batch_id,
            "bytes": b.bytes,
            "sources": b.sources.value,
            "verified": b.verified.value if b.verified else None,
            "held": bool(b.hold and b.hold.is_held),
            "keep": self.keep,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """What an expire would do.

    :param repository: URI of the repository.
    :param policy: the rules.
    :param decisions: each backup that could be read, newest first within its stream.
    :param findings: what is odd: clocks, manifests that cannot be read.
    """

    repository: str
    policy: Policy
    decisions: tuple[Decision, ...]
    findings: tuple[str, ...]

    @property
    def kept(self) -> tuple[Decision, ...]:
        """Backups that stay."""
        return tuple(d for d in self.decisions if d.keep)

    @property
    def going(self) -> tuple[Decision, ...]:
        """Backups that go."""
        return tuple(d for d in self.decisions if not d.keep)

    @property
    def verdict(self) -> Verdict:
        """Always ``SAFE``: what would not be is refused before there is a plan."""
        return Verdict.SAFE

    @property
    def fingerprint(self) -> str:
        """Changes with what goes."""
        going = sorted(f"{d.backup.name}/{d.backup.backup_id}" for d in self.going)
        return hashlib.sha256("\n".join([self.repository, *going]).encode()).hexdigest()[:16]

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        going = self.going
        if not going:
            return ()
        return (
            "look at holds again: one that was set meanwhile counts",
            f"remove {len(going)} manifest{'s' if len(going) > 1 else ''}, oldest first",
            "write the audit record",
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "kind": "expire",
            "repository": self.repository,
            "policy": self.policy.to_json(),
            "verdict": self.verdict.value,
            "kept": [d.to_json() for d in self.kept],
            "going": [d.to_json() for d in self.going],
            "findings": list(self.findings),
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
        }

    def to_markdown(self) -> str:
        """The plan for people."""
        head = (
            ("repository", f"`{self.repository}`"),
            ("policy", str(self.policy)),
            ("stay", str(len(self.kept))),
            ("go", str(len(self.going))),
            ("fingerprint", f"`{self.fingerprint}`"),
        )
        parts = ["### Expire\n", "| | |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in head) + "\n"]
        for name in dict.fromkeys(d.backup.name for d in self.decisions):
            rows = [
                f"| {d.backup.backup_id} | {'stays' if d.keep else '**goes**'} | {'; '.join(d.reasons)} |"
                for d in self.decisions
                if d.backup.name == name
            ]
            parts.append(f"#### {name}\n\n| backup | | why |\n|---|---|---|\n" + "\n".join(rows) + "\n")
        if self.findings:
            parts.append("\n".join(f"* {finding}" for finding in self.findings) + "\n")
        if self.steps:
            parts.append("\n".join(f"{n}. {step}" for n, step in enumerate(self.steps, 1)) + "\n")
        return "\n".join(parts)


def plan_expire(
    repository: Repository,
    policy: Policy,
    *,
    name: str | None = None,
    ask_sources: AskSources | None = None,
    now: datetime | None = None,
) -> ExpirePlan:
    """Plan an expire; reads only.

    :param policy: what to keep of each stream.
    :param name: only this stream; ``None`` for all, safety backups included.
    :param ask_sources: says what backups' sources still have; ``None``: nothing is known of them.
    :param now: our clock.
    :raises RefusedError: the policy is empty, or its rules would keep nothing of a stream.
    :raises NoSuchBackupError: there is no backup of this name.
    """
    if policy.is_empty:
        raise RefusedError(
            "the policy is empty: it would keep nothing", hint="say what to keep, such as --keep-last 7 --keep-daily 30"
        )
    now = now or datetime.now(UTC)
    names = repository.names() if name is None else (name,)
    findings: list[str] = []
    decisions: list[Decision] = []
    for each in names:
        backups = _read(repository, each, ask_sources, findings)
        decisions += _decided(repository, each, backups, policy, now, findings)
    if name is not None and not decisions and not findings:
        raise NoSuchBackupError(
            f"{repository.location} holds no backup of {name}",
            hint="`airflow-ckpt backups REPOSITORY` lists what there is",
        )
    return ExpirePlan(repository.location.uri, policy, tuple(decisions), tuple(findings))


def _read(repository: Repository, name: str, ask_sources: AskSources | None, findings: list[str]) -> list[Backup]:
    """The backups of a stream, newest first."""

    def read(backup_id: str) -> tuple[Backup, Mapping[str, Any]] | str | None:
        try:
            m: Manifest = repository.read_manifest(name, backup_id, with_files=False)
        except NoSuchBackupError:
            return None  # removed since it was listed
        except CkptError as e:
            return e.message
        return Backup(name, m.backup_id, m.created, m.batch_id, m.bytes, m.tags, m.claim), m.facts

    read_all = in_parallel(read, repository.backup_ids(name))
    findings += [f"{r}; it stays" for r in read_all if isinstance(r, str)]
    found = [r for r in read_all if isinstance(r, tuple)]
    words = list(ask_sources([facts for _, facts in found])) if ask_sources else [Usefulness.UNKNOWN] * len(found)
    looked = verifications(repository, name)
    held = holds(repository, name)
    backups = [
        Backup(b.name, b.backup_id, b.created, b.batch_id, b.bytes, b.tags, b.claim, word,
               looked.get(b.backup_id), held.get(b.backup_id))
        for (b, _), word in zip(found, words, strict=True)
    ]  # fmt: skip
    return sorted(backups, key=lambda b: (b.created, b.backup_id), reverse=True)


def _decided(
    repository: Repository, name: str, backups: list[Backup], policy: Policy, now: datetime, findings: list[str]
) -> list[Decision]:
    future = [b for b in backups if b.created > now + CLOCKS_DIFFER]
    past = [b for b in backups if b.created <= now + CLOCKS_DIFFER]
    findings += [
        f"backup {b.backup_id} of {name} is dated {b.created:%Y-%m-%d %H:%M:%S} UTC, and it is {now:%Y-%m-%d %H:%M:%S} "
        "here: a clock is wrong; it stays, and the rules go by the others"
        for b in future
    ]
    why: dict[str, list[str]] = {b.backup_id: ["dated in the future"] for b in future}
    for backup, reasons in zip(past, reasons_to_keep(past, policy), strict=True):
        why[backup.backup_id] = list(reasons)
    for backup, reason in _replayable(past, policy.replayable):
        why[backup.backup_id].append(reason)
    if past and not any(why[b.backup_id] for b in past):
        raise RefusedError(
            f"the policy ({policy}) would keep none of the {len(past)} backups of {name}; nothing was removed",
            hint="widen it, for example by --keep-last 1, or expire streams one by one with --name",
        )
    drill = last_drill(repository, name)
    drilled = [(b, "the last that a drill has proven") for b in backups if drill and b.backup_id == drill.backup_id]
    protected = (*_protected(past), *drilled, *_unfinished(repository, name, backups), *_held(backups))
    for backup, reason in protected:
        why[backup.backup_id].append(reason)
    return [Decision(b, bool(why[b.backup_id]), tuple(why[b.backup_id]) or ("no rule keeps it",)) for b in backups]


def _replayable(backups: list[Backup], count: int) -> list[tuple[Backup, str]]:
    """The newest ``count`` that can be replayed and, as many again, of those of which that is not known.

    What is not known neither takes the place of one that is known to be good, nor counts as bad.
    """
    good = [b for b in backups if b.sources is Usefulness.REPLAYABLE]
    unknown = [b for b in backups if b.sources is Usefulness.UNKNOWN]
    return [
        *((b, "replayable") for b in good[:count]),
        *((b, "replayable, as far as is known") for b in unknown[:count]),
    ]


def _protected(backups: list[Backup]) -> list[tuple[Backup, str]]:
    """What stays whatever the rules say. ``backups`` are the newest first."""
    kinds: tuple[tuple[str, Callable[[Backup], bool]], ...] = (
        ("newest verified", lambda b: b.verified in (Verified.STRUCTURE, Verified.CONTENTS)),
        ("newest with all contents verified", lambda b: b.verified is Verified.CONTENTS),
        ("newest replayable", lambda b: b.sources is Usefulness.REPLAYABLE),
        ("newest that may be replayable", lambda b: b.sources is Usefulness.UNKNOWN),
    )
    found = []
    for reason, test in kinds:
        newest = next((b for b in backups if test(b)), None)
        if newest is not None:
            found.append((newest, reason))
    return found


def _unfinished(repository: Repository, name: str, backups: list[Backup]) -> list[tuple[Backup, str]]:
    """Safety backups of restores that have not ended: they are the only copy of what was there."""
    if not name.endswith(SAFETY_SUFFIX):
        return []
    ended = {
        f.path.rpartition("/")[2].removesuffix(".json").partition("-")[2]
        for f in repository.location.list("audit").files
    }
    plans = ((b, b.tags.get("plan")) for b in backups)
    return [(b, f"restore {plan} has not ended") for b, plan in plans if plan and plan not in ended]


def _held(backups: list[Backup]) -> list[tuple[Backup, str]]:
    return [
        (b, f"held: {b.hold.reason}" + (f" ({b.hold.made_by})" if b.hold.made_by else ""))
        for b in backups
        if b.hold and b.hold.is_held
    ]
