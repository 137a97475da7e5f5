"""The options of guards for a stream, from several places that name some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Kind of source -> its options.
OptionsOfGuards = Mapping[str, Mapping[str, Any]]


def merged(options: OptionsOfGuards, first: OptionsOfGuards) -> dict[str, dict[str, Any]]:
    """Merge options of guards, kind by kind and option by option.

    :param options: the options, such as those that a stream declares.
    :param first: others, which come first, such as those that are given besides.
    """
    return {kind: {**options.get(kind, {}), **first.get(kind, {})} for kind in {*options, *first}}
