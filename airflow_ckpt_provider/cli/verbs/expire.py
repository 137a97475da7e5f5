"""``expire`` and ``prune``: what no policy keeps goes, then what no backup lists."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import AskSources, plan_expire
from airflow_ckpt_provider.backup.prune import MaxUnused, PrunePlan, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import COUNT_RULES, SPAN_RULES, Policy
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.kafka_config import configuration
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.verdict import Usefulness


def expire(call: Call) -> Answer:
    """Remove the backups that no rule keeps, or say which those are."""
    args = call.args
    policy, limit = _policy(args), _limit(args)
    if args.max_unused and not args.prune:
        raise UsageError("--max-unused has a meaning with --prune only", hint="leave it out, or add --prune")
    repository = Repository.open(call.places(args.repository, role="repository"))
    plan = plan_expire(repository, policy, name=args.name, ask_sources=_asking(args.kafka_config))
    going: dict[str, list[str]] = {}
    for decision in plan.going:
        going.setdefault(decision.backup.name, []).append(decision.backup.backup_id)
    pruning = plan_prune(repository, name=args.name, max_unused=limit, without=going) if args.prune else None
    document: dict[str, Any] = {"plan": plan.to_json(), "prune": pruning.to_json() if pruning else None}
    if call.screen:
        call.screen.print(terminal.plan(plan.to_markdown()))
        if pruning:
            call.screen.print(terminal.plan(pruning.to_markdown()))
    findings = bool(plan.findings)
    if not args.apply:
        if call.screen and (plan.going or (pruning and pruning.steps)):
            terminal.planned(call.screen, "removed")
        return Answer({**document, "outcome": None, "prune_outcome": None}, findings=findings)
    outcome = apply_expire(repository, plan, made_by=call.made_by, reason=args.reason)
    if call.screen:
        call.screen.print(f"Removed {terminal.count(len(outcome.removed), 'backup')}")
    document["outcome"] = outcome.to_json()
    document["prune_outcome"] = None
    if pruning:
        # Again: a backup that was held meanwhile keeps its objects.
        pruning = plan_prune(repository, name=args.name, max_unused=limit)
        document["prune"] = pruning.to_json()
        document["prune_outcome"] = _pruned(call, repository, pruning)
    return Answer(document, findings=findings)


def prune(call: Call) -> Answer:
    """Delete the objects that no backup lists, or say which those are."""
    args = call.args
    repository = Repository.open(call.places(args.repository, role="repository"))
    plan = plan_prune(repository, name=args.name, max_unused=_limit(args))
    if call.screen:
        call.screen.print(terminal.plan(plan.to_markdown()))
    if not args.apply:
        if call.screen and plan.steps:
            terminal.planned(call.screen, "removed")
        return Answer({"plan": plan.to_json(), "outcome": None}, findings=bool(plan.findings))
    return Answer({"plan": plan.to_json(), "outcome": _pruned(call, repository, plan)}, findings=bool(plan.findings))


def _pruned(call: Call, repository: Repository, plan: PrunePlan) -> dict[str, Any]:
    after = timedelta(seconds=call.args.abandoned_after)
    outcome = apply_prune(repository, plan, made_by=call.made_by, abandoned_after=after, workers=call.args.workers)
    if call.screen:
        call.screen.print(f"Deleted {terminal.count(outcome.objects, 'object')}, {terminal.size(outcome.bytes)}")
        for name, who in outcome.waits_for.items():
            call.screen.print(f"{name} waits for the next prune: {'; '.join(who)}")
    return outcome.to_json()


def _policy(args: Namespace) -> Policy:
    rules = {rule: getattr(args, f"keep_{rule.replace('-', '_')}") for rule in (*COUNT_RULES, *SPAN_RULES, "tag")}
    try:
        return Policy.parse(rules)
    except RefusedError as e:
        raise UsageError(e.message, hint=e.hint) from e


def _limit(args: Namespace) -> MaxUnused | None:
    try:
        return MaxUnused.parse(args.max_unused) if args.max_unused else None
    except RefusedError as e:
        raise UsageError(e.message, hint=e.hint) from e


def _asking(kafka_config: str | None) -> AskSources | None:
    if kafka_config is None:
        return None
    from airflow_ckpt_provider.guards.kafka_backups import judge_backups
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient

    client = KafkaClient(configuration(kafka_config))

    def ask(facts: Sequence[Mapping[str, Any]]) -> list[Usefulness]:
        return [verdict.usefulness for verdict in judge_backups(client, facts)]

    return ask
