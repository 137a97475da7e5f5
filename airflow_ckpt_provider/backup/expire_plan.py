"""What an expire would remove, and why everything else stays. Reads only.

The rules (:mod:`~airflow_ckpt_provider.backup.retention`) say what they want to keep. Beyond that these always stay, of each
stream: held backups; the newest that passed a verify, and the newest whose contents were all read; the last that a drill
restored and ran on; those that Object Lock protects; the newest whose sources still have what it would read next; the safety
backup of a restore that has not ended; and whatever is dated in the future, for somebody's clock is wrong there. Future ones
take no place in the rules either, or a clock that once went ahead would push all good backups out.

Nor do backups that are known to be damaged: the rules are applied to the others as if these did not exist. What they would keep
were it whole stays as well, for it may be repaired; it keeps no other one from staying. An expire after which no whole backup of
a stream would be left is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.contents import no_backup_of
from airflow_ckpt_provider.backup.damaged import DamagedObjects, read_damaged
from airflow_ckpt_provider.backup.drills import newest_drills
from airflow_ckpt_provider.backup.immutability import locks_on
from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER, Manifest, manifest_path
from airflow_ckpt_provider.backup.notes import Hold, HoldEvent, Verified, holds, verifications
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.backup.retention import Policy, reasons_to_keep
from airflow_ckpt_provider.backup.streams import stream_in_words, streams_among
from airflow_ckpt_provider.errors import CkptError, DamagedBackupError, NoSuchBackupError, RefusedError, command
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.units import format_time
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
    checkpoint: str = ""
    lives: tuple[str, ...] = ()
    sequence: int = 0
    #: What is known to be damaged of it, a line for each file.
    damage: tuple[str, ...] = ()


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
    :param findings: what is odd: clocks, damaged backups, manifests that cannot be read.
    :param remarks: what is no fault, but good to know: that it is not known what Object Lock protects.
    """

    repository: str
    policy: Policy
    decisions: tuple[Decision, ...]
    findings: tuple[str, ...]
    remarks: tuple[str, ...] = ()

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
        """Changes with the backups to remove."""
        going = sorted(f"{d.backup.name}/{d.backup.backup_id}" for d in self.going)
        return fingerprint_of("\n".join([self.repository, *going]))

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        going = self.going
        if not going:
            return ()
        return (
            "read holds and what stays again: a hold that was set meanwhile counts, and a whole backup has to stay",
            "write an audit record of what is about to be removed",
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
            "remarks": list(self.remarks),
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
        }

    def to_markdown(self) -> str:
        """The plan for people."""
        head = (
            ("repository", f"`{self.repository}`"),
            ("policy", str(self.policy)),
            ("kept", str(len(self.kept))),
            ("removed", str(len(self.going))),
            ("fingerprint", f"`{self.fingerprint}`"),
        )
        parts = ["### Expire\n", markdown.facts(head) + "\n"]
        for name in dict.fromkeys(d.backup.name for d in self.decisions):
            rows = [
                (d.backup.backup_id, "kept" if d.keep else "**removed**", "; ".join(d.reasons))
                for d in self.decisions
                if d.backup.name == name
            ]
            parts.append(f"#### {name}\n\n{markdown.table(('backup', '', 'why'), rows)}\n")
        if self.findings or self.remarks:
            parts.append(markdown.bullets((*self.findings, *self.remarks)) + "\n")
        if self.steps:
            parts.append(markdown.steps(self.steps) + "\n")
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
    :raises RefusedError: the policy is empty, its rules would keep nothing of a stream, or no whole backup of one would be left.
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
        damaged = read_damaged(repository.location, each)
        backups = _read(repository, each, ask_sources, findings, damaged)
        streams = streams_among(backups)
        if len(streams) > 1:
            words = "; ".join(stream_in_words(stream[0]) for stream in streams)
            findings.append(
                f"the backups named {each} are of {len(streams)} streams, and the rules are for each: {words}"
            )
        for stream in streams:
            decisions += _last_of_lives(_decided(repository, each, stream, policy, now, findings), findings)
    remarks: list[str] = []
    decisions = _unlocked(repository, decisions, now, remarks)
    for each in names:
        decided = {d.backup.backup_id: d for d in decisions if d.backup.name == each}
        for stream in streams_among([d.backup for d in decided.values()]):
            _refuse_to_leave_none(repository, each, [decided[backup.backup_id] for backup in stream])
    if name is not None and not decisions and not findings:
        raise no_backup_of(repository, name)
    return ExpirePlan(repository.location.uri, policy, tuple(decisions), tuple(findings), tuple(remarks))


def _unlocked(repository: Repository, decisions: list[Decision], now: datetime, remarks: list[str]) -> list[Decision]:
    """What Object Lock protects stays: its deletion would only hide it."""

    def path_of(decision: Decision) -> str:
        return manifest_path(decision.backup.name, decision.backup.backup_id)

    locks, unknown = locks_on(repository.location, [path_of(d) for d in decisions if not d.keep], now=now)
    if unknown:
        remarks.append(unknown)

    def decided(decision: Decision) -> Decision:
        until = locks.get(path_of(decision))
        if decision.keep or until is None:
            return decision
        return replace(decision, keep=True, reasons=(f"locked until {format_time(until)}",))

    return [decided(each) for each in decisions]


def check_kept(
    repository: Repository,
    plan: ExpirePlan,
    *,
    name: str,
    hold_of: Callable[[str], Hold | None] = lambda backup_id: None,
    left: str = "nothing of it was removed",
) -> None:
    """See that of each stream of a name of which something goes a whole backup stays, by what is known now.

    :param hold_of: the newest word on a backup, by its id: one that another expire is about to remove does not count.
    :param left: what an error says of what was removed so far.
    :raises RefusedError: those that would stay are gone, are going, or were found damaged since the plan was made.
    """
    decided = {d.backup.backup_id: d for d in plan.decisions if d.backup.name == name}
    damaged = read_damaged(repository.location, name)
    for stream in streams_among([d.backup for d in decided.values()]):
        kept = [b for b in stream if decided[b.backup_id].keep]
        if len(kept) == len(stream):
            continue
        why = []
        for reason in (_why_not_whole(repository, b, damaged, hold_of(b.backup_id)) for b in kept):
            if reason is None:
                break
            why.append(reason)
        else:
            raise RefusedError(
                f"no whole backup of {stream_in_words(stream[0])} would stay under the name {name}: "
                f"{why[0] if why else 'none is kept'}; {left}",
                hint="make a new plan: run it again. Where another expire is removing what would stay, wait until it has ended. "
                "Only if its process is dead: "
                f"`{command('release', repository.location, 'BACKUP', '--expire-is-dead', 'EXPIRE')}`",
            )


def _why_not_whole(repository: Repository, backup: Backup, damaged: DamagedObjects, hold: Hold | None) -> str | None:
    """Why a backup does not count as one that stays; ``None``: it does."""
    what = f"backup {backup.backup_id}"
    if hold and hold.event is HoldEvent.GOING:
        return f"{what} is being removed by another expire ({', '.join(hold.expires)})"
    try:
        damage = damaged.of(repository.read_manifest(backup.name, backup.backup_id, with_files=False))
    except NoSuchBackupError:
        return f"{what} was removed since the plan was made"
    except DamagedBackupError as e:
        return e.message
    return f"{what} was found damaged since the plan was made" if damage else None


def _refuse_to_leave_none(repository: Repository, name: str, decided: Sequence[Decision]) -> None:
    """Refuse to remove anything of a stream of which no whole backup would be left."""
    going = [d.backup for d in decided if not d.keep]
    if not going or any(d.keep and not d.backup.damage for d in decided):
        return
    if whole := next((backup for backup in going if not backup.damage), None):
        raise RefusedError(
            f"no whole backup of {name} would be left: those that would stay are damaged, and {whole.backup_id} would go; "
            "nothing was removed",
            hint="widen the policy, for example by --keep-last 1",
        )
    newest = decided[0].backup
    raise RefusedError(
        f"no backup of {name} is known to be whole, and {len(going)} would go; nothing was removed. Of the newest, "
        f"{newest.backup_id}: {newest.damage[0]}",
        hint="take a new backup first, or rebuild what is damaged: "
        f"`{command('repair', repository.location, 'CHECKPOINT')}`",
    )


def _read(
    repository: Repository,
    name: str,
    ask_sources: AskSources | None,
    findings: list[str],
    damaged: DamagedObjects,
) -> list[Backup]:
    """The backups of a stream, newest first."""

    def read(backup_id: str) -> tuple[Backup, Mapping[str, Any]] | str | None:
        try:
            m: Manifest = repository.read_manifest(name, backup_id, with_files=False)
            damage = tuple(each.message for each in damaged.of(m).values())
        except NoSuchBackupError:
            return None  # removed since it was listed
        except CkptError as e:
            return e.message
        return Backup(name, m.backup_id, m.created, m.batch_id, m.bytes, m.tags, m.claim,
                      checkpoint=m.checkpoint, lives=m.lives, sequence=m.sequence, damage=damage), m.facts  # fmt: skip

    read_all = in_parallel(read, repository.backup_ids(name))
    findings += [f"{r}; it stays" for r in read_all if isinstance(r, str)]
    found = [r for r in read_all if isinstance(r, tuple)]
    words = list(ask_sources([facts for _, facts in found])) if ask_sources else [Usefulness.UNKNOWN] * len(found)
    looked = verifications(repository, name)
    held = holds(repository, name)
    backups = [
        replace(
            b,
            sources=word,
            verified=Verified.now(looked.get(b.backup_id), is_damaged=bool(b.damage)),
            hold=held.get(b.backup_id),
        )
        for (b, _), word in zip(found, words, strict=True)
    ]
    # By the id, as `latest` goes: a clock that was ahead makes the time of an older one the later time.
    return sorted(backups, key=lambda b: b.backup_id, reverse=True)


def _decided(
    repository: Repository, name: str, backups: list[Backup], policy: Policy, now: datetime, findings: list[str]
) -> list[Decision]:
    future = [b for b in backups if b.created > now + CLOCKS_DIFFER]
    past = [b for b in backups if b.created <= now + CLOCKS_DIFFER]
    findings += [
        f"backup {b.backup_id} of {name} is dated {format_time(b.created)}, and it is {format_time(now)} "
        "here: a clock is wrong; it stays, and the rules go by the others"
        for b in future
    ]
    findings += [f"backup {b.backup_id} of {name} is damaged: {_first(b.damage)}" for b in backups if b.damage]
    whole = [b for b in past if not b.damage]
    why: dict[str, list[str]] = {b.backup_id: ["dated in the future"] if b in future else [] for b in backups}
    for backup, reason in _by_rules(whole, policy):
        why[backup.backup_id].append(reason)
    for backup, reason in _by_rules(past, policy):
        if backup.damage:
            why[backup.backup_id].append(f"damaged, may be repaired: {reason}")
    judged, kind = (whole, "whole backups" if len(whole) < len(past) else "backups") if whole else (past, "backups")
    if judged and not any(why[b.backup_id] for b in judged):
        raise RefusedError(
            f"the policy ({policy}) would keep none of the {len(judged)} {kind} of {name}; nothing was removed",
            hint="widen it, for example by --keep-last 1, or expire streams one by one with --name",
        )
    drill, ahead = newest_drills(repository, name, now=now)
    drilled = [(b, "the last that a drill has proven") for b in backups if drill and b.backup_id == drill.backup_id]
    for b, each in ((b, each) for each in ahead for b in backups if b.backup_id == each.backup_id):
        findings.append(
            f"a drill of backup {b.backup_id} of {name} is dated {format_time(each.at)}, and it is {format_time(now)} here: "
            "a clock is wrong; this backup stays"
        )
        drilled.append((b, "a drill dated in the future has proven it"))
    protected = (*_protected(whole), *drilled, *_unfinished(repository, name, backups), *_held(backups))
    for backup, reason in protected:
        why[backup.backup_id].append(reason)
    return [Decision(b, bool(why[b.backup_id]), tuple(why[b.backup_id]) or ("no rule keeps it",)) for b in backups]


def _last_of_lives(decisions: list[Decision], findings: list[str]) -> list[Decision]:
    """Say of which of the stream's earlier query ids no backup stays."""
    staying = {d.backup.lives[-1] for d in decisions if d.keep}
    found = []
    for decision in decisions:
        b = decision.backup
        if not decision.keep and b.lives[-1] not in staying:
            staying.add(b.lives[-1])  # said once, of the newest
            findings.append(f"no backup of {stream_in_words(b)} stays: {b.backup_id} of {b.name} is the last")
            decision = replace(decision, reasons=(*decision.reasons, f"the last of query {b.lives[-1]}"))
        found.append(decision)
    return found


def _by_rules(backups: list[Backup], policy: Policy) -> Iterator[tuple[Backup, str]]:
    """What the rules keep of some backups, newest first, as if there were no others."""
    for backup, reasons in zip(backups, reasons_to_keep(backups, policy), strict=True):
        yield from ((backup, reason) for reason in reasons)
    yield from _replayable(backups, policy.replayable)


def _first(damage: Sequence[str]) -> str:
    return damage[0] + (f" (and {len(damage) - 1} more)" if len(damage) > 1 else "")


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
