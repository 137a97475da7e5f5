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


def accept_block(risks: Sequence[Risk], *, nothing: str = "") -> str:
    """What a person has to accept before a plan is carried out, with the exact words to give; empty where there is nothing.

    :param risks: what has to be accepted.
    :param nothing: why there is nothing to do to the checkpoint; what the next start does has to be accepted all the same.
    """
    if not risks:
        return nothing
    lines = markdown.bullets(f"`{risk.word}`: {'; '.join(filter(None, (risk.why, risk.way)))}" for risk in risks)
    words = " ".join(f"--accept {risk.word}" for risk in risks)
    listed = ", ".join(f'"{risk.word}"' for risk in risks)
    before = (
        f"{nothing}\n\nTo be accepted before the query is started" if nothing else "To be accepted before it is applied"
    )
    return f"{before}:\n\n{lines}\n\nTo accept, add: `{words}`, or `accept=[{listed}]`."


def named_sink(uri: str, kind: str, more: str = "") -> str:
    """A sink in one line: its kind once, also where it has no place and is called by it.

    :param uri: where it is, or its kind.
    :param kind: of which kind it is.
    :param more: what is done to it.
    """
    about = ", ".join(filter(None, ("" if uri == kind else kind, more)))
    return f"`{uri}` ({about})" if about else f"`{uri}`"


def files(number: int) -> str:
    """A number of files."""
    return "1 file" if number == 1 else f"{number} files"


def some(paths: Sequence[str]) -> str:
    """The first few of many paths, and how many more there are."""
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
