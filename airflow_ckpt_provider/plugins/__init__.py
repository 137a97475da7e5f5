"""What Airflow loads as a plugin."""
