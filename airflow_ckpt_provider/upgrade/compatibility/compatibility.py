"""The comparison as a whole: a checkpoint, and the description of the code that is to continue from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import QueryShape, read_query_shape
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import NotACheckpointError
from airflow_ckpt_provider.upgrade.compatibility import kinds
from airflow_ckpt_provider.upgrade.compatibility.change import UNSAFE, Change, Effect
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription
from airflow_ckpt_provider.upgrade.compatibility.operators import operator_changes
from airflow_ckpt_provider.upgrade.compatibility.settings import setting_changes, state_format_changes
from airflow_ckpt_provider.upgrade.compatibility.sources import source_changes
from airflow_ckpt_provider.upgrade.compatibility.versions import release, version_changes
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What Spark makes of new code on a checkpoint, as far as can be determined without running it.

    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch whose log entry was read: the newest logged one.
    :param build: the new code.
    :param spark: version of Spark that it runs on.
    :param changes: what was found, worst first.
    """

    checkpoint: str
    batch_id: int
    build: str
    spark: str
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> Verdict:
        """``WILL_FAIL`` where Spark refuses; ``UNKNOWN`` where it does not check, or that is not known; else ``SAFE``."""
        effects = {change.effect for change in self.changes}
        if Effect.FORBIDDEN in effects:
            return Verdict.WILL_FAIL
        return Verdict.UNKNOWN if effects & set(UNSAFE) else Verdict.SAFE

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not safe, in words."""
        return tuple(f"{c.kind.code}: {c.message}" for c in self.changes if c.effect in UNSAFE)

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt compatible --json``."""
        return {
            "checkpoint": self.checkpoint,
            "batch_id": self.batch_id,
            "build": self.build,
            "spark": self.spark,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "changes": [change.to_json() for change in self.changes],
        }

    def to_markdown(self) -> str:
        """The comparison for people: a log, an approval form."""
        of = f"{markdown.code(self.build)} on {markdown.code(self.checkpoint)} after batch {self.batch_id}"
        head = f"### Compatibility: **{self.verdict.value}**\n\n{of}"
        if not self.changes:
            return f"{head}\n\nNothing has changed that a checkpoint knows of.\n"
        rows = [
            (c.effect.value, f"`{c.kind.code}`", c.message, c.kind.spark, c.remedy or c.kind.remedy)
            for c in self.changes
        ]
        return f"{head}\n\n{markdown.table(('effect', 'code', 'change', 'Spark', 'next step'), rows)}\n"


def compare(
    checkpoint: Checkpoint, description: QueryDescription, *, before: QueryDescription | None = None
) -> Compatibility:
    """Compare a checkpoint with the description of new code; reads only.

    :param checkpoint: the checkpoint.
    :param description: of the new code.
    :param before: description of the code that wrote the checkpoint: shows what no checkpoint holds, such as the type of a join
        or a watermark. ``None``: there is none, and the verdict on code with state is ``UNKNOWN`` at best.
    :raises NotACheckpointError: there is no checkpoint, or nothing has been logged in it.
    :raises UnreadableLogError: a file of it is damaged.
    """
    newest = checkpoint.progress().newest
    if newest is None:
        raise NotACheckpointError(
            f"{checkpoint.location} has no entry in offsets/: no batch has been planned",
            hint="any code can start from it",
        )
    tree = checkpoint.tree()
    shape = read_query_shape(tree, newest)
    has_state = bool(shape.operators and description.shape.operators)
    found = list(_changes(shape, tree, description))
    found += _of_descriptions(before, description, has_state=has_state)
    if before is not None and has_state:
        found += _of_another_query(shape, before.shape, found)
    order = list(Effect)
    return Compatibility(
        checkpoint=checkpoint.location.uri,
        batch_id=newest.batch_id,
        build=description.build,
        spark=description.spark,
        changes=tuple(sorted(found, key=lambda change: order.index(change.effect))),
    )


def _changes(shape: QueryShape, tree: Tree, description: QueryDescription) -> Iterator[Change]:
    new = description.shape
    yield from version_changes(shape, tree, description)
    yield from source_changes(shape, new)
    yield from operator_changes(shape, new)
    yield from state_format_changes(shape, description, release(description.spark))
    yield from setting_changes(shape, new)


def _of_descriptions(before: QueryDescription | None, now: QueryDescription, *, has_state: bool) -> Iterator[Change]:
    if before is not None and before.output_mode != now.output_mode:
        said = f"{before.output_mode} before, {now.output_mode} now"
        yield Change(kinds.OUTPUT_MODE, "output mode", said)
    if before is None or not (before.plan and now.plan):
        if has_state:
            lacks = "there is no description of the old code" if before is None else "a description has no plan"
            yield Change(kinds.PLAN_UNKNOWN, "plan", f"the stateful parts of the plan were not compared: {lacks}")
        return
    gone = tuple((Counter(before.plan) - Counter(now.plan)).elements())
    new = tuple((Counter(now.plan) - Counter(before.plan)).elements())
    for was, is_now in zip_longest(gone, new, fillvalue="nothing"):
        part = (was if is_now == "nothing" else is_now).partition(" ")[0]
        yield Change(kinds.PLAN_CHANGED, part, f"`{was}` before, `{is_now}` now")
    if before.plan != now.plan and not gone and not new:
        # At another place a part acts on another input, as the two watermarks of a join do.
        said = f"{_listed(before.plan)} before, {_listed(now.plan)} now"
        yield Change(kinds.PLAN_CHANGED, "order", f"the same parts in another order: {said}")


def _of_another_query(shape: QueryShape, old: QueryShape, found: Sequence[Change]) -> Iterator[Change]:
    """See that the description of the old code is of the query that wrote the checkpoint.

    :param old: what it says.
    :param found: the changes of the new code. What is the same of both codes is in the verdict already.
    """
    known = {(change.kind, change.subject) for change in found}
    for change in (*source_changes(shape, old), *operator_changes(shape, old)):
        if change.effect in UNSAFE and (change.kind, change.subject) not in known:
            yield Change(
                kinds.PLAN_UNKNOWN,
                "old description",
                "the description of the old code is not shown to be of the query that wrote the checkpoint: "
                f"{change.kind.code} at {change.subject}",
                "describe the code that wrote the checkpoint, with its sources, and give that as the old one",
            )
            return


def _listed(plan: Sequence[str]) -> str:
    return ", ".join(f"`{part}`" for part in plan)
