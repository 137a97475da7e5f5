"""For streaming applications: end at a batch boundary when asked to, and tell how it goes. Without Airflow.

::

    from airflow_ckpt_provider.spark.stopping import run_until_stopped
    from airflow_ckpt_provider.spark.progress_lines import ProgressLines

    spark.streams.addListener(ProgressLines("s3://lake/progress/orders.jsonl"))
    query = build(spark).writeStream.option("checkpointLocation", checkpoint).toTable("orders")
    run_until_stopped(query, "s3://lake/control/orders.stop")
"""
