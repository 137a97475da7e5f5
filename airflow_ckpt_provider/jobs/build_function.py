"""The user's part of a rehearsal: a function ``build(spark) -> DataFrame`` that makes the streaming frame and writes nothing."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DEFAULT = "build"


class BuildError(RefusedError):
    """The build function is missing, raised, or gave something else than a streaming frame.

    :param code: ``BUILD-MISSING``, ``BUILD-FAILED`` or ``BUILD-NOT-STREAMING``.
    """

    def __init__(self, code: str, message: str, *, hint: str) -> None:
        self.code = code
        super().__init__(message, hint=hint)


def load_build(given: str) -> Callable[[SparkSession], DataFrame]:
    """Find a build function.

    :param given: ``package.module:function``, or ``path/to/file.py:function``; the function is ``build`` by default.
    :raises BuildError: there is no such module or function, or the module cannot be imported.
    """
    place, _, name = given.partition(":") if ".py:" not in given else given.rpartition(":")
    name = name or _DEFAULT
    try:
        module: ModuleType | SimpleNamespace = (
            _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        )
    except (ModuleNotFoundError, FileNotFoundError) as e:
        if isinstance(e, ModuleNotFoundError) and e.name and not place.startswith(e.name):
            raise _failed(given, "could not be imported", e) from e
        raise BuildError(
            "BUILD-MISSING",
            f"--build {given}: there is no {place} ({e})",
            hint="give package.module:function or path/to/file.py:function, and ship the module with --py-files",
        ) from e
    except Exception as e:  # whatever the user's module raises
        raise _failed(given, "could not be imported", e) from e
    function = getattr(module, name, None)
    if not callable(function):
        raise BuildError(
            "BUILD-MISSING",
            f"--build {given}: {place} has no function {name}",
            hint=f"define `def {name}(spark): return spark.readStream…` in it",
        )
    return function  # type: ignore[no-any-return]


def frame_of(build: Callable[[SparkSession], DataFrame], spark: SparkSession, given: str) -> DataFrame:
    """Call a build function.

    :param given: how it was named, for messages.
    :raises BuildError: it raised, or gave no streaming frame.
    """
    try:
        frame: Any = build(spark)
    except Exception as e:  # whatever the user's function raises
        raise _failed(given, "raised", e) from e
    if not getattr(frame, "isStreaming", False):
        raise BuildError(
            "BUILD-NOT-STREAMING",
            f"--build {given} gave {type(frame).__name__}, not a streaming frame",
            hint="return the frame before `.writeStream`; the rehearsal gives it a sink of its own",
        )
    return frame  # type: ignore[no-any-return]


def settings_of(given: Sequence[str], *, option: str = "--conf") -> dict[str, str]:
    """Read ``KEY=VALUE`` arguments.

    :param option: the option that they were given by.
    :raises RefusedError: one of them is something else.
    """
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise RefusedError(f"{option} {one!r}", hint=f"give {option} KEY=VALUE")
        found[key] = value
    return found


def session_of(spark: SparkSession, settings: dict[str, str]) -> SparkSession:
    """A session of its own: what the code sets in it stays in it."""
    session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def _from_file(path: Path) -> SimpleNamespace:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    # So that it finds its neighbours, as it does when it is run.
    sys.path.insert(0, str(path.parent.absolute()))
    return SimpleNamespace(**runpy.run_path(str(path), run_name=path.stem))


def _failed(given: str, what: str, error: Exception) -> BuildError:
    return BuildError(
        "BUILD-FAILED",
        f"--build {given} {what}: {type(error).__name__}: {error}",
        hint="fix the function; nothing was started",
    )
