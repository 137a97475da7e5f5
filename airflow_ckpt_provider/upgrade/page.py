"""All that is known before a stream is stopped, on one page: what somebody reads who is asked for an approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ckpt_provider import markdown


def page_of(
    begun: Mapping[str, Any], known: Sequence[str], rehearsal: Mapping[str, Any] | None, steps: Sequence[str]
) -> str:
    """Make the page, as Markdown.

    :param begun: ``name``, ``mode``, ``version``, ``skipped`` and ``way_back`` of the upgrade.
    :param known: what the checks before have found, as Markdown.
    :param rehearsal: the report of a rehearsal; ``None``: there was none.
    :param steps: what comes after the approval, in words; empty: they are said elsewhere.
    """
    version = f" to {begun['version']}" if begun.get("version") else ""
    left_out = markdown.bullets(f"left out: {words}" for words in begun.get("skipped") or ())
    head = markdown.line(f"### Upgrade of {begun.get('name')}{version}, {begun.get('mode')}")
    parts = [f"{head}\n\n{left_out}".rstrip()]
    if way_back := begun.get("way_back"):
        parts.append(str(way_back["markdown"]))
    parts += known
    if rehearsal:
        parts.append(str(rehearsal.get("markdown") or f"Rehearsal: **{rehearsal['verdict']}**"))
    return "\n\n".join([*parts, *([then(steps)] if steps else [])])


def then(steps: Sequence[str]) -> str:
    """What comes after the approval, as Markdown.

    :param steps: the same in words.
    """
    return f"### Then\n\n{markdown.steps(steps)}"
