"""The counts of requests and bytes that were committed, and the lower bound beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_ckpt_provider.backup.packing import PACK_SIZE
from benchmarks.bounds import Bound, lower_bound
from benchmarks.results import KINDS, REQUESTS, read
from benchmarks.steps import Step
from benchmarks.tools import ALL, is_ours


class Counted:
    """The counts of requests.

    :param document: as ``benchmarks.requests`` keeps it.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.trees: dict[str, dict[str, Any]] = document["trees"]
        self._rows = {(row["tree"], row["tool"], Step(row["step"])): row for row in document["rows"]}

    @classmethod
    def committed(cls) -> Counted | None:
        """Those of the results."""
        document = read(REQUESTS)
        return cls(document) if document else None

    def row(self, tree: str, tool: str, step: Step) -> dict[str, Any] | None:
        """Counts of a tool's step."""
        return self._rows.get((tree, tool, step))

    def kinds(self, tree: str, tool: str, step: Step) -> dict[str, int] | None:
        """Kind of request -> how many."""
        row = self.row(tree, tool, step)
        return {kind: row[kind] for kind in KINDS if row[kind]} if row else None

    def total(self, tree: str, tool: str, step: Step) -> int | None:
        """All requests of a tool's step."""
        kinds = self.kinds(tree, tool, step)
        return sum(kinds.values()) if kinds is not None else None

    def tools(self, tree: str) -> list[str]:
        """Names, in the order of :data:`benchmarks.tools.ALL`."""
        found = dict.fromkeys(tool for of, tool, step in self._rows if (of, step) == (tree, Step.FIRST))
        known = [kind.name for kind in ALL if kind.name in found]
        return known + [name for name in found if name not in known]

    def ours(self, tree: str) -> list[str]:
        """Names of ours."""
        return [name for name in self.tools(tree) if is_ours(name)]

    def bound(self, tree: str, tool: str, step: Step) -> Bound:
        """The fewest requests for a step of ours, from bucket to bucket."""
        facts = self.trees[tree]
        sizes = {"files": facts["files"], "needed": facts["held_files"], "changed": facts["changed"]}
        packs = self.packs(tree) if "packs" in tool else None
        return lower_bound(step, **sizes, snapshots=self.zips(tree), packs=packs, apart=self._apart(tree, tool))

    def _apart(self, tree: str, tool: str) -> int:
        """Files that the store copied for a tool's first backup, though it packs the others."""
        return self._where(tree, tool, Step.FIRST).get("COPY objects", 0) if "packs" in tool else 0

    def _where(self, tree: str, tool: str, step: Step) -> Mapping[str, int]:
        """Requests of a step of ours by what they were for, where that was kept."""
        row = self.row(tree, tool, step)
        return row.get("where", {}) if row else {}

    def renewals(self, tree: str, tool: str, step: Step) -> int:
        """Requests of a step of ours that renew its lease: of a backup each 15 seconds, of a change each quarter of its lease.

        Without any, a backup writes its lease twice, and a change lists and writes its attempt twice each.
        """
        asked = self._where(tree, tool, step)
        backup = asked.get("PUT running", 0) - 2
        change = sum(asked.get(f"{kind} changes", 0) for kind in ("LIST", "PUT", "GET")) - 4
        return 2 * max(0, backup) + max(0, change)

    def packs(self, tree: str) -> int:
        """Packs that hold what a backup of the tree holds."""
        held: int = self.trees[tree]["held_bytes"]
        return math.ceil(held / PACK_SIZE)

    def zips(self, tree: str) -> int:
        """Zips of snapshots that a backup of the tree holds: one for each partition."""
        facts = self.trees[tree]
        return facts["partitions"] if facts["snapshots"] else 0

    def main_tree(self) -> str:
        """The one that is shown in full: of 5,000 files where it was counted."""
        return "5000" if "5000" in self.trees else next(iter(self.trees))
