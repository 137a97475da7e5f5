"""Changes of stateful operators and of their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.query_shape import OperatorShape, QueryShape
from airflow_ckpt_provider.checkpoint.state_schema import StoreSchema
from airflow_ckpt_provider.upgrade.compatibility import kinds
from airflow_ckpt_provider.upgrade.compatibility.change import Change
from airflow_ckpt_provider.upgrade.compatibility.schemas import goes_into, names_of, words

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
#: Settings that decide how state is laid out, and what Spark takes where a checkpoint does not pin them
#: (``OffsetSeqMetadata.relevantSQLConfDefaultValues``). Where one differs, schemas of a trial run are not those of the restart.
_LAYOUT = {
    "spark.sql.streaming.aggregation.stateFormatVersion": "1",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1",
    "spark.sql.streaming.join.stateFormatVersion": "1",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "false",
    _ENCODING: "unsaferow",
}
#: Operators of which Spark keeps keys only, and checks keys only.
_KEYS_ONLY = ("dedupe",)
_INTERNAL = "$"


def operator_changes(old: QueryShape, new: QueryShape) -> Iterator[Change]:
    """Compare operators by their numbers, as Spark does.

    :param old: of the checkpoint.
    :param new: of the new code.
    """
    before = {o.operator_id: o for o in old.operators}
    now = {o.operator_id: o for o in new.operators}
    if any(o.name is None for o in old.operators):
        yield from _unnamed(before, now)
        return
    names = {number: str(o.name) for number, o in before.items()}, {number: str(o.name) for number, o in now.items()}
    if names[0] != names[1]:
        yield from _of_the_set(*names)
        return
    for number, operator in before.items():
        yield from _of_one(operator, now[number], old, new)


def _unnamed(before: dict[int, OperatorShape], now: dict[int, OperatorShape]) -> Iterator[Change]:
    """Spark 3.5 and older write no names: numbers and schemas are what there is."""
    for number in sorted(set(now) - set(before)):
        yield Change(kinds.OPERATORS_ADDED, str(now[number]), f"the checkpoint has no state of {now[number]}")
    for number in sorted(set(before) - set(now)):
        yield Change(kinds.OPERATORS_REMOVED, str(before[number]), f"the new code has no operator {number}")
    for number in sorted(set(before) & set(now)):
        yield from _stores(before[number], now[number])


def _of_the_set(before: dict[int, str], now: dict[int, str]) -> Iterator[Change]:
    said = f"{_listed(before)} in the checkpoint, {_listed(now)} in the new code"
    more, less = Counter(now.values()) - Counter(before.values()), Counter(before.values()) - Counter(now.values())
    if not before:
        yield Change(kinds.OPERATORS_BEGUN, _listed(now), said)
    elif not now:
        yield Change(kinds.OPERATORS_ALL_REMOVED, _listed(before), said)
    elif more and not less:
        yield Change(kinds.OPERATORS_ADDED, ", ".join(more.elements()), said)
    elif less and not more:
        yield Change(kinds.OPERATORS_REMOVED, ", ".join(less.elements()), said)
    else:
        differing = (f"operator {n}" for n in sorted({*before, *now}) if before.get(n) != now.get(n))
        yield Change(kinds.OPERATORS_CHANGED, ", ".join(differing), said)


def _listed(names: dict[int, str]) -> str:
    return ", ".join(f"{number} {name}" for number, name in sorted(names.items())) or "no operator"


def _of_one(before: OperatorShape, now: OperatorShape, old: QueryShape, new: QueryShape) -> Iterator[Change]:
    for key in sorted({*before.properties, *now.properties}):
        was, is_now = before.properties.get(key), now.properties.get(key)
        if was != is_now:
            yield Change(kinds.OPERATOR_SETTINGS, f"{before}, {key}", f"{key} of {before}: {was} before, {is_now} now")
    for name in sorted({*before.variables, *now.variables}):
        yield from _variable(before, name, before.variables.get(name), now.variables.get(name))
    # A Spark that does not know a setting does not pin it, and behaves as before it was there.
    layout = {key: old.conf.get(key, default) for key, default in _LAYOUT.items() if key in new.conf}
    layout = {key: value for key, value in layout.items() if value != new.conf[key]}
    if layout:
        given = " ".join(f"--conf {key}={value}" for key, value in layout.items())
        yield Change(
            kinds.SCHEMA_UNKNOWN,
            str(before),
            f"{before}: the new code was described with another {', '.join(layout)} than the checkpoint will have it run with",
            f"describe it again with the checkpoint's: {given}",
        )
        return
    yield from _stores(before, now, evolves=old.conf.get(_ENCODING) == "avro")


def _variable(operator: OperatorShape, name: str, was: str | None, is_now: str | None) -> Iterator[Change]:
    if name.startswith(_INTERNAL) or was == is_now:
        return
    subject = f"{operator}, variable {name}"
    if was is None:
        yield Change(kinds.VARIABLE_ADDED, subject, f"{name} ({is_now}) is new in {operator}")
    elif is_now is None:
        yield Change(kinds.VARIABLE_REMOVED, subject, f"{name} ({was}) is gone from {operator}")
    else:
        yield Change(kinds.VARIABLE_TYPE, subject, f"{name} of {operator} was {was} and is {is_now}")


def _stores(before: OperatorShape, now: OperatorShape, *, evolves: bool = False) -> Iterator[Change]:
    if not before.stores or not now.stores:
        missing = "the checkpoint" if not before.stores else "the description"
        yield Change(kinds.SCHEMA_UNKNOWN, str(before), f"{missing} has no schema of {before}")
        return
    if set(before.stores) != set(now.stores):
        said = f"{before}: stores {', '.join(before.stores)} before, {', '.join(now.stores)} now"
        yield Change(kinds.STATE_STORES, str(before), said)
        return
    # The four stores of a join repeat each other's columns: what differs is said once.
    said_already: set[tuple[str, str]] = set()
    for store in before.stores:
        old = {schema.name: schema for schema in before.stores[store]}
        new = {schema.name: schema for schema in now.stores[store]}
        for name in sorted(set(old) & set(new)):
            for change in _schema(before, store, old[name], new[name], evolves=evolves):
                key = (change.kind.code, change.message)
                if key not in said_already:
                    said_already.add(key)
                    yield change


def _schema(
    operator: OperatorShape, store: str, old: StoreSchema, new: StoreSchema, *, evolves: bool
) -> Iterator[Change]:
    subject = f"{operator}, {f'variable {old.name}' if old.name else f'store {store}'}"
    where = f"{operator}{f', {old.name}' if old.name else ''}"
    if not goes_into(new.key, old.key):
        said = f"keys of {where}: ({words(old.key)}) before, ({words(new.key)}) now"
        yield Change(kinds.STATE_KEYS, subject, said)
    elif names_of(new.key) != names_of(old.key):
        said = f"keys of {where}: ({words(old.key)}) before, ({words(new.key)}) now"
        yield Change(kinds.STATE_NAMES, subject, said)
    said = f"values of {where}: ({words(old.value)}) before, ({words(new.value)}) now"
    if operator.name in _KEYS_ONLY:
        if not goes_into(new.value, old.value):
            yield Change(kinds.STATE_VALUES_UNCHECKED, subject, said)
    elif evolves and new.value != old.value:
        yield Change(kinds.STATE_VALUES_EVOLVED, subject, said)
    elif not goes_into(new.value, old.value):
        yield Change(kinds.STATE_VALUES, subject, said)
    elif names_of(new.value) != names_of(old.value):
        yield Change(kinds.STATE_NAMES, subject, said)
