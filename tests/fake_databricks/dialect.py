"""Databricks SQL, as far as the provider writes it, turned into what duckdb runs.

Catalogs become a part of the schema's name, because duckdb knows no catalog ``main``: ``main.sales.orders`` is
``"main.sales"."orders"`` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_PART = r"(?:`[^`]+`|\"[^\"]+\"|[A-Za-z_]\w*)"
_TOKEN = re.compile(rf"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|{_PART}(?:\s*\.\s*{_PART})*|.", re.DOTALL)
#: After these comes the name of a table.
_BEFORE_NAME = {"table", "into", "from", "join", "using", "exists", "clone", "history", "detail", "update", "view"}
#: Words that may follow them and are no names.
_NO_NAME = {"if", "not", "exists", "select", "set", "table", "values", "by", "lateral", "unnest"}
_SUBQUERY = re.compile(r"\b([A-Za-z_]\w*)\s+AS\s*\(", re.IGNORECASE)


def name_parts(name: str) -> tuple[str, ...]:
    """Parts of a dotted name, without quotes."""
    return tuple(part.strip('`"') for part in re.findall(_PART, name))


def tokens(statement: str) -> Iterator[str]:
    """Strings, comments, dotted names and single characters."""
    return (match[0] for match in _TOKEN.finditer(statement))


def rename(statement: str, resolve: Callable[[tuple[str, ...]], str | None]) -> str:
    """Put names of tables in the words of duckdb.

    :param resolve: given the parts of a dotted name, what to write instead; None where it is no table.
    """
    out: list[str] = []
    word = ""
    not_tables = _NO_NAME | {match[1].lower() for match in _SUBQUERY.finditer(statement)}
    every = list(tokens(statement))
    for at, token in enumerate(every):
        if token.startswith("'") or not re.match(_PART, token):
            out.append(token)
            if token.strip():
                word = ""
            continue
        parts = name_parts(token)
        named = word in _BEFORE_NAME and not (len(parts) == 1 and token.lower() in not_tables)
        if word in ("from", "join") and every[at + 1 : at + 2] == ["("]:
            named = False  # a function that returns a table
        changed = resolve(parts) if named or len(parts) >= 3 else None
        out.append(changed or (".".join(f'"{part}"' for part in parts) if "`" in token else token))
        # IS DISTINCT FROM has a FROM that no table follows.
        word = token.lower() if len(parts) == 1 and word != "distinct" else ""
    return "".join(out)


_FUNCTIONS = (
    (re.compile(r"\bcurrent_timestamp\s*\(\s*\)", re.IGNORECASE), "current_timestamp"),
    (re.compile(r"\bUSING\s+DELTA\b", re.IGNORECASE), ""),
    (re.compile(r"\*\s*EXCEPT\s*\(", re.IGNORECASE), "* EXCLUDE ("),
    # Databricks compares NULLs with <=>.
    (re.compile(r"<=>"), "IS NOT DISTINCT FROM"),
)


def functions(statement: str) -> str:
    """What is only spelled differently."""
    for pattern, replacement in _FUNCTIONS:
        statement = pattern.sub(replacement, statement)
    return statement


def parameters(statement: str, values: dict[str, str]) -> str:
    """Put the named parameters of a statement in its place (``:name``)."""
    out = []
    for part in re.split(r"('(?:[^']|'')*')", statement):
        if not part.startswith("'"):
            part = re.sub(r"(?<![:\w]):([A-Za-z_]\w*)", lambda match: values.get(match[1], match[0]), part)
        out.append(part)
    return "".join(out)
