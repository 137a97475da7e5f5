"""The commits in the log of a Delta table, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def commit_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def committed_ms(table: Path, version: int) -> int:
    """When Delta says that a version was committed: the time of its file, or the one that the commit carries."""
    file = commit_file(table, version)
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    return int(info.get("inCommitTimestamp", file.stat().st_mtime_ns // 1_000_000))


def json_versions(table: Path) -> list[int]:
    """Versions whose commit is there, ascending."""
    return sorted(int(file.stem) for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit())


def newest_version(table: Path) -> int:
    return max(json_versions(table), default=-1)


def new_commits(table: Path, after: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """Version and actions of the commits after a version."""
    return [
        (version, [json.loads(line) for line in commit_file(table, version).read_text().splitlines()])
        for version in json_versions(table)
        if version > after
    ]


def settings_of(found: dict[str, Any]) -> dict[str, str]:
    """Properties and columns of a table's metadata."""
    columns = json.loads(found["schemaString"])["fields"]
    return {**found["configuration"], **{f"column {column['name']}": str(column["type"]) for column in columns}}
