"""``stream="orders"``: what a task is not given, it takes from the declaration of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_ckpt_provider.configuration import configured_streams
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.operators.lineage import LineageOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.streams.parameters import COMPANIONS, parameters_of
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_ckpt_provider.guards.registry import GuardSettings

#: The default of a parameter that has to be given, by itself or by the stream.
UNSET: Any = object()


class DeclaredOperator(LineageOperator):
    """Base of what takes ``stream``: parameters that are not given come from its declaration, when the task runs.

    What is given comes first. A place that is given brings its own connection: that of the stream is not taken for it.

    .. seealso:: :doc:`/howto/declare-streams`

    :param stream: name of a declared stream, or a :class:`~airflow_ckpt_provider.streams.stream.Stream`; ``None``: all
        parameters are given. A template that is rendered to nothing is refused. (templated)
    :param streams_file: the file that declares it, or :class:`~airflow_ckpt_provider.streams.streams.Streams` made in Python;
        ``None``: the file of ``streams`` in the section ``[ckpt]``.
    """

    template_fields: Sequence[str] = ("stream",)
    #: Parameter -> the one that it stands for here.
    stream_aliases: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make ``stream`` a template field of every operator."""
        super().__init_subclass__(**kwargs)
        cls.template_fields = tuple(dict.fromkeys((*cls.template_fields, "stream")))

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note what is given: also a value that is the default comes before the stream's."""
        self: Self = super().__new__(cls)
        object.__setattr__(self, "_given", frozenset(kwargs))
        return self

    def __init__(
        self, *, stream: str | Stream | None = None, streams_file: str | Streams | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._names_stream = stream is not None
        self.stream = stream
        self.streams_file = streams_file

    def needed(self, value: Any, field: str) -> Any:
        """Return a parameter that has to be given, by itself or by the stream.

        :param value: what was given, or :data:`UNSET`.
        :param field: its name.
        :raises TypeError: neither was given.
        """
        if value is not UNSET:
            return value
        if self.stream is None:
            raise TypeError(f"missing keyword argument {field!r}; give it, or stream")
        return None

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Any,
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        # Airflow calls this for tasks that are mapped, too, and `render_template_fields` only for others.
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:
            self.after_rendering()

    def after_rendering(self) -> None:
        """Set what the stream says of the fields; called as soon as they are rendered, of mapped tasks too."""
        with no_retry_when_refused():
            self._fill()

    def _fill(self) -> None:
        stream = self.declared_stream()
        if stream is None:
            if self._names_stream:  # without a name some operators are about all streams
                raise RefusedError(
                    f"stream is {self.stream!r}: it names no stream",
                    hint="see what its template is rendered from; or leave `stream` out, and give the other parameters",
                )
            return
        known = parameters_of(stream)
        here = {field: self.stream_aliases.get(field, field) for field in self.template_fields}
        unset = {field for field in here if self._is_unset(field)}
        for place, companions in COMPANIONS.items():
            if place in here and place not in unset:
                unset -= set(companions)
        if "repository" in unset and "repository_conn_id" in here and "repository_conn_id" not in unset:
            from airflow_ckpt_provider.places import repository_uri

            if repository_uri(text(getattr(self, "repository_conn_id", None))):
                unset.discard("repository")  # the connection that is given names another one
        for field in unset:
            if here[field] in known:
                setattr(self, field, known[here[field]])

    def declared_stream(self) -> Stream | None:
        """The declaration of the stream; ``None`` where the task is of none."""
        if isinstance(self.stream, Stream):
            return self.stream
        name = text(self.stream)
        return self.declared_streams().named(name) if name else None

    def declared_guard_settings(self) -> GuardSettings:
        """The settings of guards that the stream declares; none where the task is of no stream."""
        from airflow_ckpt_provider.guards.registry import GuardSettings
        from airflow_ckpt_provider.streams.parameters import connected_guard_options

        stream = self.declared_stream()
        return GuardSettings(options=connected_guard_options(stream) if stream else {})

    def facets_of_every_run(self) -> Mapping[str, Mapping[str, Any]]:
        """What is declared of the stream, for OpenLineage."""
        from airflow_ckpt_provider.lineage.runs import facet_of_stream

        with suppress(CkptError):  # the task has said what is wrong with the declaration
            if stream := self.declared_stream():
                return {"ckpt_stream": facet_of_stream(stream)}
        return {}

    def declared_streams(self) -> Streams:
        """All streams that are declared."""
        return self.streams_file if isinstance(self.streams_file, Streams) else configured_streams(self.streams_file)

    def _is_unset(self, field: str) -> bool:
        value = getattr(self, field, None)
        if value is None or value in ("", "None", [], (), {}):
            return True
        given: frozenset[str] = self._given  # type: ignore[attr-defined]  # see __new__
        return field not in given and value == _default_of(type(self), field)


def _default_of(of: type, field: str) -> Any:
    """The default of a parameter, wherever the class has it from."""
    for each in of.__mro__:
        init = vars(each).get("__init__")
        defaults = getattr(getattr(init, "__wrapped__", init), "__kwdefaults__", None) or {}
        if field in defaults:
            return defaults[field]
    return None
