"""What Airflow is told about this package is well formed, and true."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from pkgutil import iter_modules
from typing import Any

import jsonschema
import pytest

from airflow_ckpt_provider.get_provider_info import get_provider_info

INFO = get_provider_info()
OPERATOR_MODULES = [module for group in INFO["operators"] for module in group["python-modules"]]


def schema() -> dict[str, Any]:
    text = files("airflow").joinpath("provider_info.schema.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def test_info_follows_airflows_own_schema() -> None:
    jsonschema.validate(INFO, schema())


def test_info_names_only_keys_that_the_schema_knows() -> None:
    # The schema itself lets unknown keys pass: a misspelt one would simply be without effect.
    assert set(INFO) <= set(schema()["properties"])


def test_airflow_finds_the_provider_by_its_entry_point() -> None:
    [entry] = entry_points(group="apache_airflow_provider", name="provider_info").select(
        module="airflow_ckpt_provider.get_provider_info"
    )
    assert entry.load() is get_provider_info


@pytest.mark.parametrize("module", OPERATOR_MODULES)
def test_every_operator_module_holds_an_operator(module: str) -> None:
    from airflow.sdk import BaseOperator

    loaded = import_module(module)
    own = [
        value
        for value in vars(loaded).values()
        if isinstance(value, type) and issubclass(value, BaseOperator) and value.__module__ == module
    ]
    assert own, f"{module} defines no operator"


@pytest.mark.parametrize(("kind", "base"), [("operators", "BaseOperator"), ("sensors", "BaseSensorOperator")])
def test_every_module_that_holds_an_operator_is_named(kind: str, base: str) -> None:
    from airflow import sdk

    package = import_module(f"airflow_ckpt_provider.{kind}")
    modules = {f"{package.__name__}.{found.name}" for found in iter_modules(package.__path__)}
    for name in modules:
        import_module(name)  # a base is known as one only once its subclasses are there
    holding = {
        name
        for name in modules
        for value in vars(import_module(name)).values()
        if isinstance(value, type) and issubclass(value, getattr(sdk, base)) and value.__module__ == name
        if not value.__name__.startswith("_") and not value.__subclasses__()  # a base of others is none by itself
    }
    named = {module for group in INFO[kind] for module in group["python-modules"]}
    assert named >= holding


@pytest.mark.parametrize("path", [*INFO["extra-links"], *INFO["cli"]])
def test_everything_named_can_be_imported(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert callable(getattr(import_module(module), name))


def test_the_configuration_has_the_settings_that_the_code_reads() -> None:
    from airflow_ckpt_provider.streams.settings import SECTION, SETTINGS, STREAMS, STREAMS_WORDS

    options = INFO["config"][SECTION]["options"]
    of_page = {"dag_prefix", "page_dag_id", "restore_dag_id", "rewind_dag_id"}
    read = {name: option["description"] for name, option in options.items() if name not in of_page}
    assert read == {STREAMS: STREAMS_WORDS, **SETTINGS}
    assert of_page < options.keys()


def test_the_connection_type_is_that_of_its_hook() -> None:
    from airflow_ckpt_provider.hooks.ckpt_repository import CkptRepositoryHook
    from airflow_ckpt_provider.places import REPOSITORY

    [kind] = INFO["connection-types"]
    module, _, name = kind["hook-class-name"].rpartition(".")
    assert getattr(import_module(module), name) is CkptRepositoryHook
    assert (kind["connection-type"], kind["hook-name"]) == (CkptRepositoryHook.conn_type, CkptRepositoryHook.hook_name)
    assert CkptRepositoryHook.conn_type == REPOSITORY
    secret = [name for name, field in kind["conn-fields"].items() if field["schema"].get("format") == "password"]
    assert secret == [name for name in kind["conn-fields"] if "secret" in name]


def test_every_link_of_an_operator_is_named() -> None:
    # A link that is not named here does not survive the serialisation of a DAG.
    from airflow.sdk import BaseOperator

    links = {
        f"{type(link).__module__}.{type(link).__qualname__}"
        for module in OPERATOR_MODULES
        for value in vars(import_module(module)).values()
        if isinstance(value, type) and issubclass(value, BaseOperator)
        for link in value.operator_extra_links
        if type(link).__module__.startswith("airflow_ckpt_provider.")
    }
    assert links == set(INFO["extra-links"])
