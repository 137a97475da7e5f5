"""The same verbs from a shell: ``airflow-ckpt …``, and as a part of Airflow's own ``airflow ckpt …``."""
