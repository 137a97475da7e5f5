"""Airflow operators: thin, no logic of their own; each is one verb of the core."""
