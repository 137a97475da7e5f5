"""Ask the example stream to stop, and wait until its progress lines show that it has: stop.py MARKER PROGRESS."""

import sys
import time

from airflow_ckpt_provider.checkpoint.progress_events import TERMINATED, read_events
from airflow_ckpt_provider.spark.stopping import request_stop
from airflow_ckpt_provider.storage.opening import open_location

marker, progress = sys.argv[1:]
request_stop(marker, reason="stopped by a DAG")
while not (events := read_events(open_location(progress))) or events[-1].kind != TERMINATED:
    time.sleep(1)
