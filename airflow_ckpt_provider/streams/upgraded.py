"""Which streams are upgraded by a DAG, and what keeps those of an application from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_ckpt_provider.streams.stream import Stream

#: Of an application they are run once, for all of its streams.
COMMANDS = ("stop", "start", "deploy", "roll_back")
#: What the upgrades need of a declaration.
OF_UPGRADES = ("repository", *COMMANDS)


def is_upgraded(stream: Stream) -> bool:
    """Whether a stream declares all that an upgrade needs.

    :param stream: the stream.
    """
    return all(getattr(stream, need) for need in OF_UPGRADES)


def are_upgraded_together(streams: Sequence[Stream]) -> bool:
    """Whether an upgrade of all streams of an application is possible.

    :param streams: all its streams.
    """
    return all(map(is_upgraded, streams)) and not any(differences(streams[0], streams))


def differences(stream: Stream, streams: Sequence[Stream]) -> Iterator[tuple[str, str]]:
    """The fields in which a stream keeps its application from being upgraded, each with the first stream that differs in it.

    Nothing where something that an upgrade needs is declared by no stream: then nobody wants one.

    :param stream: one stream of the application.
    :param streams: all of them.
    """
    if not all(any(getattr(each, need) for each in streams) for need in OF_UPGRADES):
        return
    for need in OF_UPGRADES:
        own = getattr(stream, need)
        for other in streams:
            theirs = getattr(other, need)
            if not own:
                if theirs:
                    yield need, f"there is none, and {other.name!r} declares one"
                    break
            elif not theirs:
                yield need, f"{other.name!r} declares none"
                break
            elif need in COMMANDS and own != theirs:
                yield need, f"{other.name!r} declares another one"
                break
