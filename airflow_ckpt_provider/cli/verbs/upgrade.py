"""``upgrade``: where the newest upgrade of a stream stands, and the end of one whose run is gone."""

from __future__ import annotations

from airflow_ckpt_provider.backup.contents import no_backup_of
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.errors import NoSuchBackupError
from airflow_ckpt_provider.units import shown_time
from airflow_ckpt_provider.upgrade.outcome import outcome_of
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, end_upgrade, newest_upgrade, streams_upgraded


def upgrade(call: Call) -> Answer:
    """Show the newest upgrade; with ``--end``, end it."""
    args = call.args
    repository = Repository.open(call.places(args.repository, role="repository"))
    if args.end and not args.reason:
        raise UsageError("an upgrade is ended for a reason", hint="say it: --reason TEXT")
    name = args.name or _only(repository)
    found = newest_upgrade(repository, name)
    if found is None:
        if not repository.backup_ids(name):
            raise no_backup_of(repository, name)
        if call.screen:
            call.screen.print(f"{name} has had no upgrade")
        return Answer({"name": name, "upgrade": None})
    if args.end:
        found = end_upgrade(repository, found, kind="by hand", made_by=call.made_by, reason=args.reason)
    place = call.places(args.checkpoint, role="checkpoint") if args.checkpoint else None
    outcome = outcome_of(found, Checkpoint.at(place)) if place else None
    if call.screen:
        state = "under way" if found.is_open else "ended"
        call.screen.print(terminal.title(f"Upgrade of {found.name}, {state}: {found.upgrade_id}"))
        call.screen.print(terminal.facts([(shown_time(facts["at"]), event.value) for event, facts in _in_order(found)]))
        if outcome:
            call.screen.print(terminal.plan(outcome.to_markdown()))
    return Answer(
        {
            "name": name,
            "upgrade": found.upgrade_id,
            "open": found.is_open,
            "events": [{"event": event.value, **facts} for event, facts in _in_order(found)],
            "outcome": outcome.to_json() if outcome else None,
        }
    )


def _only(repository: Repository) -> str:
    """The only stream that has had an upgrade, else the only one that there is, as ``latest`` chooses it."""
    upgraded = streams_upgraded(repository)
    names = upgraded or [name for name in repository.names() if not name.endswith(SAFETY_SUFFIX)]
    repository.refuse_several(names, "upgrades" if upgraded else "backups")
    if not names:
        raise NoSuchBackupError(f"{repository.location} holds no backup", hint="name the stream (name / --name)")
    return names[0]


def _in_order(found: Upgrade) -> list[tuple[Event, dict[str, object]]]:
    return sorted(((event, dict(facts)) for event, facts in found.events.items()), key=lambda item: str(item[1]["at"]))
