"""PySpark applications for what needs Spark: each a module with ``main(argv)``, for ``spark-submit``; none imports Airflow."""
