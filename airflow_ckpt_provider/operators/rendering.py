"""Templates of fields, in DAGs that render native objects too."""

from __future__ import annotations

from collections import ChainMap
from typing import Any

import jinja2
from airflow.sdk import DAG, BaseOperator, Context
from jinja2.nativetypes import NativeEnvironment


class TextOperator(BaseOperator):
    """Base of all operators: what a template gives as text stays that text.

    With ``render_template_as_native_obj=True`` Airflow reads text as Python: a stream ``1_000`` would be ``1000``, the version
    ``2.10`` would be ``2.1``, and the id ``12e45678`` infinite. An object that a template gives is kept as it is.
    """

    def _render(self, template: jinja2.Template, context: Context, dag: DAG | None = None) -> Any:
        env = template.environment
        if not isinstance(env, NativeEnvironment):
            return super()._render(template, context, dag)
        variables: Any = ChainMap(context, template.globals)  # type: ignore[arg-type]  # it is read only
        parts = [*template.root_render_func(env.context_class(env, variables, template.name, template.blocks))]
        return parts[0] if len(parts) == 1 else "".join(map(str, parts))
