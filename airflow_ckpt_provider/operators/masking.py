"""Keeping credentials that a task was given off its page and out of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.declared import DeclaredOperator
from airflow_ckpt_provider.places import mask_credentials

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context


class MaskingOperator(DeclaredOperator):
    """Base of what is given the URI of a place or options of a store.

    Airflow shows rendered fields on the task's page before the task runs. So credentials in them are made known to Airflow's
    masker as soon as they are rendered.
    """

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Any,
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is not self:
            return
        for field in self.template_fields:
            value: Any = getattr(self, field, None)
            for each in value if isinstance(value, list | tuple) else (value,):
                mask_credentials(each)
