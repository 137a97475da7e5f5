"""What is measured of every tool."""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    """A step, in the order in which a tool goes through them."""

    FIRST = "first backup"
    NOTHING = "nothing changed"
    SKIPPED = "nothing committed"
    CHANGED = "1 % changed"
    VERIFY = "verify"
    READ = "verify, reading all"
    RESTORE = "restore"


#: Share of the state files that are replaced before :attr:`Step.CHANGED`.
CHANGED_SHARE = 0.01
