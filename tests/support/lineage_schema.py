"""OpenLineage events, checked by its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema

from airflow_ckpt_provider.lineage.runs import FACETS, SCHEMA_FILE

SCHEMA = json.loads(SCHEMA_FILE.read_text())


#: What OpenLineage's client adds to each facet.
BASE = {"_producer": "urn:x", "_schemaURL": "urn:x"}


def check(name: str, facet: Mapping[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA | {"$ref": f"#/$defs/{FACETS[name]}"})
    validator.validate({**facet, **BASE})
    assert json.loads(json.dumps(facet)) == facet
