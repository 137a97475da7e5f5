"""What an error of a stream means, what must not be done about it, and what to do.

:func:`~airflow_ckpt_provider.advisor.advice.recovery_advice` takes an exception, a text or a log; the registry of
what is known is in :mod:`.registry`, one module for each part of a stream.
"""
