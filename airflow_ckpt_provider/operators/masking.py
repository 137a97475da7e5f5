"""Keeping credentials that a task was given off its page and out of its log."""

from __future__ import annotations

from airflow_ckpt_provider.operators.declared import DeclaredOperator


class MaskingOperator(DeclaredOperator):
    """Base of what is given the URI of a place or options of a store.

    Airflow shows rendered fields on the task's page before the task runs. So credentials in them are made known to Airflow's
    masker as soon as they are rendered.
    """

    def after_rendering(self) -> None:
        """Make credentials in the fields known."""
        from airflow_ckpt_provider.places import mask_credentials

        super().after_rendering()
        for field in self.template_fields:
            mask_credentials(getattr(self, field, None))
