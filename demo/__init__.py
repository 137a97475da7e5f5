"""The main job: back up a live stream from Airflow, lose its checkpoint, restore it, compare every row (``make demo``)."""
