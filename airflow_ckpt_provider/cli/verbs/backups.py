"""``backups``: what a repository holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.backup.contents import no_backup_of
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import Hold, HoldEvent, holds
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import DamagedBackup, readable
from airflow_ckpt_provider.backup.sets import all_sets
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.cli.kafka_config import judged_backups
from airflow_ckpt_provider.errors import RepositoryError

if TYPE_CHECKING:
    from airflow_ckpt_provider.guards.kafka_backups import BackupVerdict


def backups(call: Call) -> Answer:
    """List backups, oldest first; one that cannot be read is a finding and does not hide the others; so is damage."""
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    if call.args.sets:
        return _sets(call, repository)
    names = repository.names() if call.args.name is None else (call.args.name,)
    found: dict[str, list[Manifest]] = {}
    #: Path of a manifest -> the newest word on its hold.
    held: dict[str, Hold] = {}
    damaged: list[str] = []
    for name in names:
        known = read_damaged(repository.location, name)
        for each in readable(repository, name, repository.backup_ids(name), with_files=False):
            if isinstance(each, DamagedBackup):
                damaged += each.problems
            else:
                damaged += (f"{name} {each.backup_id}: {damage.message}" for damage in known.of(each).values())
                found.setdefault(name, []).append(each)
        try:
            words = holds(repository, name) if name in found else {}
        except RepositoryError as e:
            damaged.append(f"{e.message}: {e.hint}")
        else:
            held |= {m.path: words[m.backup_id] for m in found.get(name, ()) if m.backup_id in words}
    if call.args.name is not None and not found and not damaged:
        raise no_backup_of(repository, call.args.name)
    listed = [manifest for manifests in found.values() for manifest in manifests]
    verdicts = judged_backups(call.args.kafka_config, listed) if call.args.kafka_config else {}
    if call.screen:
        _show(repository, found, held, damaged, verdicts, call.screen)
    document = {
        "repository": repository.location.uri,
        "backups": [
            {
                **m.summary(),
                "hold": held[m.path].to_json() if m.path in held else None,
                **({"source_verdict": verdicts[m.path].to_json()} if verdicts else {}),
            }
            for m in listed
        ],
        "findings": damaged,
    }
    return Answer(document, findings=bool(damaged))


def _sets(call: Call, repository: Repository) -> Answer:
    found = [each for each in all_sets(repository) if call.args.name in (None, *each.names)]
    if call.args.name is not None and not found and not repository.backup_ids(call.args.name):
        raise no_backup_of(repository, call.args.name)
    damaged = [f"set {each.set_id}: {problem}" for each in found for problem in each.problems]
    if call.screen:
        shown = terminal.table("set!", "taken!", "batches", "whole")
        for each in found:
            manifests = each.backups.values()
            batches = ", ".join(f"{m.name} {m.batch_id}" for m in manifests)
            newest = max(m.created for m in manifests)
            shown.add_row(each.set_id, terminal.ago(newest), Text(batches), "yes" if each.is_whole else "no")
        call.screen.print(shown if found else f"{repository.location} holds no set")
        if damaged:
            call.screen.print(terminal.title("Findings"))
            call.screen.print(terminal.findings(damaged))
    document = {"repository": repository.location.uri, "sets": [each.to_json() for each in found], "findings": damaged}
    return Answer(document, findings=bool(damaged))


def _show(
    repository: Repository,
    found: dict[str, list[Manifest]],
    held: dict[str, Hold],
    damaged: list[str],
    verdicts: dict[str, BackupVerdict],
    screen: Console,
) -> None:
    if not found and not damaged:
        screen.print(f"{repository.location} holds no backup", soft_wrap=True)
    for position, (name, manifests) in enumerate(found.items()):
        if position:
            screen.print()
        screen.print(Text.assemble((name, "bold"), f"  {terminal.count(len(manifests), 'backup')}"))
        source = ["Kafka!"] if verdicts else []
        shown = terminal.table("backup!", "taken!", "batches!", "files>", "size>", *source, "about")
        for m in manifests:
            shown.add_row(
                m.backup_id,
                terminal.ago(m.created),
                _span(m.restorable),
                f"{len(m.files):,}",
                terminal.size(m.bytes),
                *([verdicts[m.path].usefulness.value] if verdicts else []),
                Text(_about(m, held.get(m.path))),
            )
        screen.print(shown)
    if damaged:
        screen.print()
        screen.print(terminal.title("Findings"))
        screen.print(terminal.findings(damaged))


def _span(batches: tuple[int, ...]) -> str:
    whole = batches == tuple(range(batches[0], batches[-1] + 1))
    return f"{batches[0]}-{batches[-1]}" if whole and len(batches) > 2 else ", ".join(map(str, batches))


def _about(manifest: Manifest, hold: Hold | None) -> str:
    words = {HoldEvent.HELD: "held: {}", HoldEvent.GOING: "being removed: {}"}
    word = words[hold.event].format(hold.reason) if hold and hold.event in words else ""
    tags = " ".join(f"{key}={value}" for key, value in manifest.tags.items())
    return "; ".join(filter(None, (word, manifest.reason, tags)))
