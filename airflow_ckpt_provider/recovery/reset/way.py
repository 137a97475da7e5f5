"""The ways to reset a stream."""

from __future__ import annotations

from enum import StrEnum


class ResetWay(StrEnum):
    """What takes the place of the old checkpoint; chosen by a person."""

    #: A new checkpoint that reads on where the old one stood.
    KEEP_POSITION = "keep-position"
    #: A new checkpoint that starts where its sources' own options say.
    FROM_SCRATCH = "from-scratch"
    #: The same checkpoint under a new query id.
    NEW_QUERY_ID = "new-query-id"
