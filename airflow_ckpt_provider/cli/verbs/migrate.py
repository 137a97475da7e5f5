"""``migrate``: the small files of all backups together into packs."""

from __future__ import annotations

from datetime import timedelta

from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call


def migrate(call: Call) -> Answer:
    """Put small objects into packs, or say which those are."""
    args = call.args
    place = call.places(args.repository, role="repository")
    plan = plan_migrate(Repository.open(place), name=args.name)
    if call.screen:
        call.screen.print(terminal.plan(plan.to_markdown()))
    findings = bool(plan.findings)
    if not args.apply:
        if call.screen and plan.steps:
            terminal.planned(call.screen)
        return Answer({"plan": plan.to_json(), "outcome": None}, findings=findings)
    with terminal.progress_bar("Packing") as on_progress:
        outcome = apply_migrate(
            place,
            plan,
            made_by=call.made_by,
            abandoned_after=timedelta(seconds=args.abandoned_after),
            workers=args.workers,
            on_progress=on_progress,
        )
    if call.screen:
        packed = f"{terminal.count(outcome.objects, 'object')}, {terminal.size(outcome.bytes)}"
        call.screen.print(f"Put {packed} into {terminal.count(outcome.packs, 'pack')}")
        call.screen.print(f"Deleted {terminal.count(outcome.deleted, 'object')}")
        for name, who in outcome.waits_for.items():
            call.screen.print(f"{name} waits for the next time: {'; '.join(who)}")
    return Answer({"plan": plan.to_json(), "outcome": outcome.to_json()}, findings=findings)
