"""``stream_dags("streams.yaml")``: all DAGs of all streams, from one line in a file of DAGs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import DAG

from airflow_ckpt_provider.configuration import configured_prefix, configured_settings, configured_streams
from airflow_ckpt_provider.dag_factory.manual import ManualDags
from airflow_ckpt_provider.dag_factory.scheduled import ScheduledDags
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.declared_classes import check_classes
from airflow_ckpt_provider.streams.loading import load_streams
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams


class StreamDags(ScheduledDags, ManualDags):
    """All DAGs of all streams. Subclass it to change them, and give the class to :func:`stream_dags`."""

    def dags(self) -> dict[str, DAG]:
        """Make the DAGs, by their ids.

        :raises RefusedError: two would have one id.
        """
        return _by_id((*self.scheduled(), *self.manual()))


def stream_dags(
    streams: str | os.PathLike[str] | Streams | Stream | Iterable[Stream] | None = None,
    *,
    factory: type[StreamDags] = StreamDags,
    per_stream: bool = False,
    prefix: str | None = None,
    **settings: Any,
) -> dict[str, DAG]:
    """Make the DAGs of declared streams. Reads the file and nothing else: no connection, no store. Operators and notifiers that
    it names are imported, and made with their arguments.

    It takes two lines of Python::

        from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags

        stream_dags("streams.yaml")

    Airflow finds the DAGs by itself. Each is about all streams, by tasks that are mapped, and a form where the stream is
    chosen: the number of DAGs does not grow with that of the streams.

    .. seealso:: :doc:`/howto/declare-streams`, :doc:`/howto/declared-dags`

    :param streams: the file, beside the file of DAGs that calls this where it is a relative path; or one or several streams that
        are declared in Python; ``None``: the file of ``streams`` in the section ``[ckpt]``.
    :param factory: makes the DAGs.
    :param per_stream: make DAGs of its own for each stream, whose ids have its name in them.
    :param prefix: what the ids of the DAGs begin with; ``None``: ``dag_prefix`` in the section ``[ckpt]``, else ``ckpt``.
        The page looks for the DAGs of its forms by that option.
    :param settings: more for the factory: ``default_args``, ``tags``.
    :raises RefusedError: the file has problems: Airflow shows all of them as the import error; or there are no streams.
    """
    found = _streams(streams, sys._getframe(1).f_globals.get("__file__"))
    if not found:
        raise RefusedError(
            "there are no streams", hint="give some, or remove the file of DAGs: none is backed up by it"
        )
    check_classes(found)
    prefix = prefix or configured_prefix()
    groups: Mapping[str, Streams] = {prefix: found}
    if per_stream:
        groups = {f"{prefix}_{name}": Streams([stream], source=found.source) for name, stream in found.items()}
    made = [factory(of_group, prefix=each, **settings).dags() for each, of_group in groups.items()]
    together = factory(found, prefix=prefix, **settings).applications()
    return _by_id((*(dag for of_group in made for dag in of_group.values()), *together))


def _by_id(dags: Iterable[DAG]) -> dict[str, DAG]:
    """Airflow would keep the last DAG of an id, and the streams of the others would silently have none."""
    found: dict[str, DAG] = {}
    for dag in dags:
        if dag.dag_id in found:
            raise RefusedError(
                f"two DAGs would have the id {dag.dag_id}",
                hint="rename one stream, or write its schedule in another way",
            )
        found[dag.dag_id] = dag
    return found


def _streams(given: str | os.PathLike[str] | Streams | Stream | Iterable[Stream] | None, caller: str | None) -> Streams:
    if given is None:
        return configured_streams()
    if isinstance(given, Streams):
        return given
    if isinstance(given, str | os.PathLike):
        beside = os.path.dirname(os.path.abspath(caller)) if caller else os.getcwd()
        return load_streams(os.path.join(beside, given), settings=configured_settings())
    if isinstance(given, Stream):
        return Streams([given])
    if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
        raise RefusedError(
            f"streams is a {type(given).__name__}",
            hint="give the path of streams.yaml, a Stream, or a list of them; parse_streams reads the text of a file",
        )
    return Streams(given)
