"""Keeping credentials that a task was given off its page and out of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.places import mask_credentials

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context


class MaskingOperator(BaseOperator):
    """Base of what is given the URI of a place or options of a store.

    Airflow shows rendered fields on the task's page before the task runs. So credentials in them are made known to Airflow's
    masker as soon as they are rendered.
    """

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the fields, and have Airflow hide the credentials in them."""
        super().render_template_fields(context, jinja_env)
        for field in self.template_fields:
            value: Any = getattr(self, field, None)
            for each in value if isinstance(value, list | tuple) else (value,):
                mask_credentials(each)
