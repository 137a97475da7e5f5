"""The options of guards for a stream, from several places that name some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.streams.stream import Stream

#: Kind of source -> its options.
OptionsOfGuards = Mapping[str, Mapping[str, Any]]


def merged(options: OptionsOfGuards, first: OptionsOfGuards) -> dict[str, dict[str, Any]]:
    """Merge options of guards, kind by kind and option by option.

    :param options: the options, such as those that a stream declares.
    :param first: others, which come first, such as those that are given besides.
    """
    return {kind: {**options.get(kind, {}), **first.get(kind, {})} for kind in {*options, *first}}


def options_of(
    streams: Sequence[Stream],
    given: Mapping[str, OptionsOfGuards],
    declared: Callable[[Stream], OptionsOfGuards],
) -> dict[str, OptionsOfGuards]:
    """What the guards need of each stream, by its name in the repository; streams of which nothing is said are left out.

    :param streams: the streams.
    :param given: options by the name of a stream, which come before those that it declares.
    :param declared: returns what a stream declares, with or without Airflow connections.
    """
    found = dict(given)
    for stream in streams:
        found[stream.repository_name] = merged(declared(stream), given.get(stream.repository_name, {}))
    return {name: options for name, options in found.items() if options}
