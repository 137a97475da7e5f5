"""Many streams at once: find their checkpoints for mapped tasks, and report the status of all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.fleet.limits import DEPTH, WORKERS
from airflow_ckpt_provider.links.page import CheckpointsPageLink, page_of
from airflow_ckpt_provider.operators.declared_fleet import (
    checkpoint_place,
    repository_of,
)
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, required, separated, text, whole_number
from airflow_ckpt_provider.operators.guard_result import REACTIONS
from airflow_ckpt_provider.operators.masking import MaskingOperator
from airflow_ckpt_provider.operators.place_operators import RepositoryOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.source_connections import guards_by_connection
from airflow_ckpt_provider.streams.stream import Stream as DeclaredStream
from airflow_ckpt_provider.units import parse_seconds

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.fleet.discovery import Discovery
    from airflow_ckpt_provider.fleet.fleet import Fleet
    from airflow_ckpt_provider.fleet.stream import Limits
    from airflow_ckpt_provider.storage.location import Location

#: Problems named in the error; the report has all of them.
_SHOWN = 10


class ProblemsError(AirflowFailException):
    """The report was made and names problems of streams. The task is not retried.

    .. code-block:: python

        raise ProblemsError("orders: no batch was committed for 2 d")
    """


class DiscoverCheckpointsOperator(MaskingOperator):
    """Find the checkpoints below some places, for mapped tasks: one backup for each.

    The result is a list of ``{"checkpoint": …, "name": …}``, for ``expand_kwargs``; with these names all fit into one repository.
    Streams without a committed batch are left out, for there is nothing to back up; torn ones are not: their backup fails,
    and says why. A directory that cannot be listed is logged, and is a problem of the fleet's report. Where one cannot be
    listed and no checkpoint is found, the task fails.

    .. code-block:: python

        found = DiscoverCheckpointsOperator(
            task_id="discover",
            directories=["s3://lake/checkpoints"],
        )
        CheckpointBackupOperator.partial(task_id="backup", repository="s3://backups/streams").expand_kwargs(found.output)

    .. seealso:: :doc:`/howto/fleet`

    :param directories: URIs below which checkpoints are looked for, as a list or separated by commas. (templated)
    :param checkpoint_conn_id: Airflow connection to reach them; ``None``: the environment's own credentials. (templated)
    :param depth: how many levels below each of them. (templated)
    :param workers: directories read at the same time.
    """

    template_fields: Sequence[str] = ("directories", "checkpoint_conn_id", "depth")
    ui_color = "#e1d5e7"

    def __init__(
        self,
        *,
        directories: Sequence[str] | str,
        checkpoint_conn_id: str | None = None,
        depth: int | str = DEPTH,
        workers: int = WORKERS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.directories = directories
        self.checkpoint_conn_id = checkpoint_conn_id
        self.depth = depth
        self.workers = workers

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return address and name of each checkpoint."""
        from airflow_ckpt_provider.fleet.discovery import State, discover

        with no_retry_when_refused():
            places = _places(self.directories, self.checkpoint_conn_id)
            if not places:
                raise RefusedError(
                    "directories is empty", hint="give directories, or check the template that it comes from"
                )
            found = discover(places, depth=_depth(self.depth), workers=self.workers)
        for unread in found.unread:
            self.log.warning("What is below %s is not known: %s", unread.uri, unread.message)
        for uri in found.too_deep:
            self.log.warning("Below %s was not looked: see depth", uri)
        if found.unread and not found.found:
            uri, message = found.unread[0].uri, found.unread[0].message
            raise StorageError(
                f"no checkpoint was found, and what is below {uri} is not known: {message}",
                hint="check directories, and what may be listed there",
            )
        chosen = [each for each in found.found if each.state is not State.NO_BATCH]
        for each in found.found:
            self.log.info("%s (%s): %s %s", each.place, each.name, each.state.value, each.message)
        self.log.info("%d checkpoints, %d of them with a committed batch", len(found.found), len(chosen))
        return [{"checkpoint": each.place.uri, "name": each.name} for each in chosen]


class FleetReportOperator(RepositoryOperator):
    """Report the status of many streams: last good backup, gap, time to loss, size, last drill, half-done rewinds.

    The result is the report, as a dictionary and key by key: ``streams``, ``problems``, ``unread``, ``markdown``. A limit that is
    broken, or that cannot be judged because something is not known, is a problem. Before the task fails, without retries, the
    report is pushed as the XCom ``report``.

    The numbers of each stream also go to Airflow's own metrics, as gauges ``ckpt.stream.<number>`` with the tag ``stream``, and
    ``ckpt.stream.<stream>.<number>`` for StatsD without tags. The report is kept in the repository too, for the page in Airflow.

    Parameters of the repository: see :class:`~.place_operators.RepositoryOperator`.

    .. code-block:: python

        FleetReportOperator(
            task_id="report",
            repository="s3://backups/streams",
            directories=["s3://lake/checkpoints"],
            max_age="26h",
            max_gap=10,
        )

    .. seealso:: :doc:`/howto/fleet`, :doc:`/howto/page`

    :param streams: declared streams, all of one repository: their checkpoints, repository, guards, and the limits of each, which
        are ``rpo`` of its objectives and ``max_gap`` and ``min_time_to_loss`` of its watch. Limits and options that are given
        besides come first. (templated)
    :param directories: URIs below which checkpoints are looked for, as a list or separated by commas. (templated)
    :param checkpoints: checkpoints one by one, besides: a list of URIs, or of ``{"checkpoint": …, "name": …}``. (templated)
    :param checkpoint_conn_id: Airflow connection to reach all of them; ``None``: the environment's own credentials. (templated)
    :param depth: how many levels below each of them. (templated)
    :param max_age: the oldest that the last good backup may be of a stream that has committed since, such as ``"26h"``; ``None``:
        not judged. (templated)
    :param max_gap: the most logged batches without a commit; ``None`` likewise. (templated)
    :param min_time_to_loss: the least time for which the sources must have what is read next; ``None`` likewise. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``; without it and options, no guard is asked. (templated)
    :param options: what else guards need, by kind of source, for all streams. (templated)
    :param stream_options: the same for single streams: ``{"orders": {"delta": {"tables": {"0": "s3://lake/t"}}}}``. (templated)
    :param sizes: list all files of each checkpoint for its size too, not only of its backup. (templated)
    :param on_finding: ``"fail"`` the task where there are problems, or ``"warn"``. (templated)
    :param workers: streams read at the same time.
    """

    template_fields: Sequence[str] = (
        *RepositoryOperator.template_fields,
        "streams",
        "directories",
        "checkpoints",
        "checkpoint_conn_id",
        "depth",
        "max_age",
        "max_gap",
        "min_time_to_loss",
        "kafka_config_id",
        "options",
        "stream_options",
        "sizes",
        "on_finding",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "options": "json",
        "stream_options": "json",
        "checkpoints": "json",
    }
    ui_color = "#fff2cc"
    operator_extra_links = (CheckpointsPageLink(),)

    def __init__(
        self,
        *,
        streams: Sequence[str | DeclaredStream] = (),
        directories: Sequence[str] | str = (),
        checkpoints: Sequence[str | Mapping[str, str]] | str = (),
        checkpoint_conn_id: str | None = None,
        depth: int | str = DEPTH,
        max_age: str | None = None,
        max_gap: int | str | None = None,
        min_time_to_loss: str | None = None,
        kafka_config_id: str | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        stream_options: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
        sizes: bool | str = False,
        on_finding: str = "fail",
        workers: int = WORKERS,
        **kwargs: Any,
    ) -> None:
        if streams:
            kwargs.setdefault("repository", None)
        super().__init__(**kwargs)
        self.streams = streams
        self.directories = directories
        self.checkpoints = checkpoints
        self.checkpoint_conn_id = checkpoint_conn_id
        self.depth = depth
        self.max_age = max_age
        self.max_gap = max_gap
        self.min_time_to_loss = min_time_to_loss
        self.kafka_config_id = kafka_config_id
        self.options = options
        self.stream_options = stream_options
        self.sizes = sizes
        self.on_finding = on_finding
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; problems fail the task, unless they are only to be reported."""
        from airflow_ckpt_provider.fleet.fleet import inspect_fleet
        from airflow_ckpt_provider.fleet.options import options_of
        from airflow_ckpt_provider.fleet.stream import Limits
        from airflow_ckpt_provider.guards.registry import GuardSettings
        from airflow_ckpt_provider.streams.parameters import connected_guard_options

        with no_retry_when_refused():
            reaction = one_of(self.on_finding, "on_finding", REACTIONS)
            limits = self._limits()
            options = mapping(self.options, "options")
            settings = GuardSettings(
                options={kind: mapping(values, f"options[{kind!r}]") for kind, values in options.items()}
            )
            declared = self._declared()
            own = options_of(declared, self._stream_options(), connected_guard_options)
            kafka = text(self.kafka_config_id)
            repository = self._repository_of(declared)
            places = {checkpoint_place(stream).uri: stream for stream in declared}
            fleet = inspect_fleet(
                self._streams(declared),
                repository,
                limits=limits,
                own_limits={uri: Limits.of(stream, limits) for uri, stream in places.items()},
                objectives={uri: stream.objectives for uri, stream in places.items()},
                guards=(lambda told: guards_by_connection(told, kafka)) if kafka or settings.options or own else None,
                settings=settings,
                options=own,
                sizes=flag(self.sizes, "sizes"),
                workers=self.workers,
            )
            _send(fleet)
            self._keep(repository, fleet, context)
            return self._conclude(fleet, reaction, context)

    def _limits(self) -> Limits:
        from airflow_ckpt_provider.fleet.stream import Limits

        age, left = text(self.max_age), text(self.min_time_to_loss)
        return Limits(
            parse_seconds(age, field="max_age") if age else None,
            whole_number(self.max_gap, "max_gap"),
            parse_seconds(left, field="min_time_to_loss") if left else None,
        )

    def _stream_options(self) -> dict[str, dict[str, dict[str, Any]]]:
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, kinds in mapping(self.stream_options, "stream_options").items():
            said = f"stream_options[{name!r}]"
            found[name] = {kind: mapping(values, f"{said}[{kind!r}]") for kind, values in mapping(kinds, said).items()}
        return found

    def _declared(self) -> list[DeclaredStream]:
        given = separated(self.streams, "streams")
        known = self.declared_streams() if not all(isinstance(each, DeclaredStream) for each in given) else None
        found = [each if isinstance(each, DeclaredStream) or not known else known.named(str(each)) for each in given]
        return [each for each in (*found, self.declared_stream()) if isinstance(each, DeclaredStream)]

    def _repository_of(self, declared: Sequence[DeclaredStream]) -> Repository:
        if self._repository_uri() or not declared:
            return self._open_repository()
        return repository_of(declared)

    def _streams(self, declared: Sequence[DeclaredStream] = ()) -> Discovery:
        from airflow_ckpt_provider.fleet.discovery import discover
        from airflow_ckpt_provider.fleet.fleet import discovered
        from airflow_ckpt_provider.places import open_place

        conn_id = text(self.checkpoint_conn_id)
        roots = _places(self.directories, conn_id)
        listed = [
            (required(c.get("checkpoint"), "checkpoint"), text(c.get("name"))) if isinstance(c, Mapping) else (c, None)
            for c in separated(self.checkpoints, "checkpoints")
        ]
        if not (roots or listed or declared):
            raise RefusedError(
                "no streams were given", hint="give directories or checkpoints, or check their templates"
            )
        found = discover(roots, depth=_depth(self.depth), workers=self.workers)
        return discovered(
            found,
            [
                *((open_place(uri, conn_id), name) for each, name in listed if (uri := text(each))),
                *((checkpoint_place(stream), stream.repository_name) for stream in declared),
            ],
            workers=self.workers,
        )

    def _keep(self, repository: Repository, fleet: Fleet, context: Context) -> None:
        """Keep the report for the page; a connection that may only read is no reason to fail."""
        from airflow_ckpt_provider.fleet.report import keep_report

        writer = f"{context['ti'].dag_id}.{context['ti'].task_id}" if "ti" in context else self.task_id
        try:
            keep_report(repository, fleet, writer=writer)
            if "ti" in context and (url := page_of(repository.location.uri)):
                context["ti"].xcom_push(key=CheckpointsPageLink.XCOM_KEY, value=url)
        except CkptError as e:
            self.log.warning("The page keeps its older report of these streams: %s", e)

    def _conclude(self, fleet: Fleet, reaction: str, context: Context) -> dict[str, Any]:
        """Return the result; problems raise :class:`ProblemsError`, unless they are only to be reported."""
        from airflow_ckpt_provider.advisor.surface import for_operators
        from airflow_ckpt_provider.fleet.tables import to_markdown

        markdown = to_markdown(fleet)
        result = {**fleet.to_json(), "markdown": markdown}
        problems = fleet.problems()
        (self.log.warning if problems else self.log.info)("%s", markdown)
        if not problems or reaction == "warn":
            return result
        if "ti" in context:
            context["ti"].xcom_push(key="report", value=result)
        lines = [f"{uri}: {'; '.join(found)}" for uri, found in problems.items()]
        more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        said = RefusedError(
            "\n".join([f"problems: {len(lines)}; streams found: {len(fleet.streams)}", *lines[:_SHOWN], *more]),
            hint="the report is in the log and in the XCom `report`; on_finding='warn' only warns",
        )
        raise ProblemsError(for_operators(str(said)))


def _places(directories: Sequence[str] | str, conn_id: str | None) -> list[Location]:
    from airflow_ckpt_provider.places import open_place

    given = separated(directories, "directories")
    return [open_place(required(each, "directories"), text(conn_id)) for each in given]


def _depth(value: int | str) -> int:
    depth = whole_number(value, "depth")
    return DEPTH if depth is None else depth


def _send(fleet: Fleet) -> None:
    """Tell Airflow's metrics, wherever they are sent to."""
    from airflow.providers.common.compat.sdk import Stats

    from airflow_ckpt_provider.fleet.metrics import gauges

    for gauge in gauges(fleet):
        if gauge.name == "unknown":
            continue
        stream = gauge.labels["stream"]
        Stats.gauge(f"ckpt.stream.{gauge.name}", gauge.value, tags={"stream": stream})
        # Without tags, the name has the stream in it, in the characters that Airflow allows in names of metrics.
        Stats.gauge(f"ckpt.stream.{re.sub(r'[^a-zA-Z0-9_.-]', '_', stream)}.{gauge.name}", gauge.value)
