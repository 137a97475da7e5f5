"""Groups of tasks, ready to be wired into a DAG."""
