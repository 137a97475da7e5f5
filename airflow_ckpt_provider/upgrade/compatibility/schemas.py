"""When Spark takes one state schema for another: the rules of ``StateSchemaCompatibilityChecker``.

Types count by position; names do not. A column that could not be null may not become one that can
(``DataType.equalsIgnoreNameAndCompatibleNullability``).
"""

from __future__ import annotations

from typing import Any


def goes_into(new: Any, old: Any) -> bool:
    """Whether Spark accepts the new type where the old one is stored.

    :param new: a type as Spark's JSON has it: a name, or an object.
    :param old: the stored one.
    """
    if not (isinstance(new, dict) and isinstance(old, dict)):
        return bool(new == old)
    if new.get("type") != old.get("type"):
        return False
    match new.get("type"):
        case "struct":
            pairs = list(zip(new["fields"], old["fields"], strict=False))
            return len(new["fields"]) == len(old["fields"]) and all(
                (o["nullable"] or not n["nullable"]) and goes_into(n["type"], o["type"]) for n, o in pairs
            )
        case "array":
            nullable = old["containsNull"] or not new["containsNull"]
            return bool(nullable and goes_into(new["elementType"], old["elementType"]))
        case "map":
            nullable = old["valueContainsNull"] or not new["valueContainsNull"]
            inner = goes_into(new["keyType"], old["keyType"]) and goes_into(new["valueType"], old["valueType"])
            return bool(nullable and inner)
        case _:
            return bool(new == old)


def names_of(schema: Any) -> list[Any]:
    """The names in a schema, in order, those inside included."""
    if not isinstance(schema, dict):
        return []
    found: list[Any] = []
    for column in schema.get("fields", ()):
        found += [column["name"], *names_of(column["type"])]
    for part in ("elementType", "keyType", "valueType"):
        found += names_of(schema.get(part))
    return found


def words(schema: dict[str, Any]) -> str:
    """A schema as people read it: ``k string, n bigint not null``."""
    return ", ".join(f"{c['name']} {_type(c['type'])}{'' if c['nullable'] else ' not null'}" for c in schema["fields"])


def _type(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    match kind.get("type"):
        case "struct":
            return f"struct<{words(kind)}>"
        case "array":
            return f"array<{_type(kind['elementType'])}>"
        case "map":
            return f"map<{_type(kind['keyType'])}, {_type(kind['valueType'])}>"
        case _:
            return str(kind.get("type"))
