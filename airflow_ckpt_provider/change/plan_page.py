"""A plan for people: the log, an approval form, a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.change.plan import Risk

#: Paths that Markdown names of each kind; the JSON has them all.
_SHOWN = 6


def plan_page(
    title: str, plan_id: str, rows: Sequence[tuple[str, str]], reasons: Iterable[str], *parts: str, steps: Iterable[str]
) -> str:
    """A plan for people: the log, an approval form, a terminal.

    :param title: what is planned.
    :param rows: name and value of each fact.
    :param reasons: why the verdict is what it is.
    :param parts: more Markdown, before the steps.
    :param steps: what carrying it out does.
    """
    head = f"### {title}, plan {plan_id}"
    blocks = [head, markdown.facts(rows), markdown.bullets(reasons), *parts, markdown.steps(steps)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def accept_block(risks: Sequence[Risk]) -> str:
    """What a person has to accept before a plan is carried out, with the exact words to give; empty where there is nothing."""
    if not risks:
        return ""
    lines = markdown.bullets(f"`{risk.word}`: {'; '.join(filter(None, (risk.why, risk.way)))}" for risk in risks)
    words = " ".join(f"--accept {risk.word}" for risk in risks)
    listed = ", ".join(f'"{risk.word}"' for risk in risks)
    return (
        f"To be accepted before it is carried out:\n\n{lines}\n\nThe words to give: `{words}`, or `accept=[{listed}]`."
    )


def some(paths: Sequence[str]) -> str:
    """The first few of many paths, and how many more there are."""
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
