"""The settings of the guard of one kind of source, as a person gives them: refused where nothing would heed them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_ckpt_provider.errors import RefusedError, did_you_mean
from airflow_ckpt_provider.units import parse_flag, parse_seconds

#: Setting -> what it is called before a source or a name, as a shell gives it: ``table.0``, ``option.0.ignoreDeletes``.
_FLAT = {"options": "option.", "tables": "table.", "described": "described.", "catalog": "catalog."}
#: What every kind may have: the connection by which Airflow's operators reach its sources.
_CONN_ID = "conn_id"
#: The kinds whose guards are ours: of others we do not know what their settings mean.
_OURS = ("kafka", "delta", "iceberg", "file")


class SourceSettings:
    """What the guard of one kind has as settings.

    :param kind: the kind, such as ``kafka``.
    :param given: its settings.
    :param single: names of settings that have one value.
    :param mappings: names of settings that have one value for each source, or name: ``options`` (of the query's reader; each
        value is a mapping itself), ``tables``, ``described``, ``catalog``. A shell gives them one by one: ``table.<source>``.
    :raises RefusedError: a setting is not known, or not of its form.
    """

    def __init__(
        self, kind: str, given: Mapping[str, Any], *, single: Collection[str] = (), mappings: Collection[str]
    ) -> None:
        self._kind = kind
        self._given = given
        known = {_CONN_ID, *single, *mappings}
        flat = tuple(_FLAT[name] for name in mappings)
        for key in given:
            if key not in known and not (key.startswith(flat) and key not in flat):
                forms = {f"{_FLAT[name]}<source>" for name in mappings if name in ("tables", "described")}
                forms |= {"option.<source>.<name>"} if "options" in mappings else set()
                raise RefusedError(
                    f"the guard of {kind} sources has no setting {key!r}", hint=did_you_mean(key, known | forms)
                )

    @classmethod
    def any(cls, kind: str, given: Mapping[str, Any]) -> SourceSettings:
        """Settings whose names the guard itself checks.

        :param kind: the kind.
        :param given: its settings.
        """
        return cls(kind, given, single=tuple(given), mappings=tuple(_FLAT))

    def get(self, name: str) -> Any:
        """A setting with one value; ``None`` if it was not given."""
        return self._given.get(name)

    def is_on(self, name: str) -> bool:
        """Whether a setting is true; a shell gives a text.

        :raises RefusedError: it is neither true nor false.
        """
        said = self._given.get(name)
        return False if said in (None, "") else parse_flag(said, field=f"{self._kind}.{name}")

    def one_of(self, name: str, choices: Collection[str]) -> str | None:
        """A setting that has one of some values; ``None`` if it was not given.

        :raises RefusedError: it has another.
        """
        said = self._given.get(name)
        if said in (None, ""):
            return None
        if said not in choices:
            raise self._malformed(name, f"give {' or '.join(choices)}")
        return str(said)

    def seconds(self, name: str) -> float | None:
        """A setting that is a time; ``None`` if it was not given.

        :raises RefusedError: it is none.
        """
        said = self._given.get(name)
        return None if said in (None, "") else parse_seconds(said, field=f"{self._kind}.{name}")

    def by_source(self, name: str) -> dict[str, Any]:
        """A setting that has one value for each source, or name.

        :raises RefusedError: it is no mapping.
        """
        flat = _FLAT[name]
        whole = self._given.get(name) or {}
        if not isinstance(whole, Mapping):
            raise self._malformed(name, f"give a mapping, or {flat}<source>")
        single = {key: value for key, value in self._given.items() if key.startswith(flat)}
        return {str(key).removeprefix(flat): value for key, value in (*whole.items(), *single.items())}

    def reader_options(self) -> dict[str, dict[str, str]]:
        """Options of the query's readers, by source.

        :raises RefusedError: they are not given by source.
        """
        found: dict[str, dict[str, str]] = {}
        for key, value in self.by_source("options").items():
            source, dot, name = key.partition(".")
            if not isinstance(value, Mapping) and not dot:
                raise self._malformed("options", "give source -> options, or option.<source>.<name>")
            options = value if isinstance(value, Mapping) else {name: value}
            of_source = found.setdefault(key if isinstance(value, Mapping) else source, {})
            for option, said in options.items():
                if isinstance(said, (Mapping, list, tuple, set)):
                    raise RefusedError(
                        f"the option {option} of {self._kind} source {source if dot else key} is {said!r}",
                        hint='give it as the query has it, as text: "orders,clicks", or JSON such as {"orders": [0]}',
                    )
                if said not in (None, "", "None"):  # a template that rendered to nothing
                    of_source[str(option)] = str(said)
        return found

    def _malformed(self, name: str, hint: str) -> RefusedError:
        return RefusedError(f"{self._kind}.{name} is {self._given.get(name)!r}", hint=hint)


def sources_named(options: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """Which sources the settings of our guards are about, as far as they name one.

    :param options: kind -> settings.
    :return: kind -> names.
    :raises RefusedError: settings are not of their form.
    """
    found = {}
    for kind in options.keys() & set(_OURS):
        told = SourceSettings.any(kind, options[kind])
        found[kind] = {*told.reader_options(), *told.by_source("tables"), *told.by_source("described")}
    return found
