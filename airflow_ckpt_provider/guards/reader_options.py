"""Options of a query's readers, as far as somebody gives them: no checkpoint records them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location


def option(options: Mapping[str, str], name: str) -> str | None:
    """One option of a source; Spark takes its name in any case."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is ``true``, in any case."""
    return (option(options, name) or "").lower() == "true"


def located(place: object, *, kind: str, source: str) -> Location:
    """The place of a table that was given for a source: its address, or opened already.

    :param place: what was given.
    :param kind: kind of the source, for the error.
    :param source: its number or name, for the error.
    :raises RefusedError: it is neither.
    """
    if isinstance(place, Location):
        return place
    if isinstance(place, (str, os.PathLike)) and str(place) not in ("", "None"):
        return open_location(str(place))
    raise RefusedError(
        f"the table of {kind} source {source} is {place!r}".replace("source  is", "source is"),
        hint="give its address, such as s3://lake/tables/orders",
    )
