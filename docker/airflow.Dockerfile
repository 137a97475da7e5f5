# Airflow with this package, the clients of what the example DAGs work on, and Spark's own client (with its Java): `spark-submit`, and
# with it the driver of a job or of the example stream, run in this image, on Airflow's Python.
FROM apache/spark:4.0.0-scala2.13-java17-python3-ubuntu AS spark

FROM apache/airflow:3.3.2-python3.12
COPY --from=spark /opt/java/openjdk /opt/java/openjdk
COPY --from=spark /opt/spark /opt/spark
ENV JAVA_HOME=/opt/java/openjdk SPARK_HOME=/opt/spark PATH="${PATH}:/opt/spark/bin:/opt/java/openjdk/bin"
COPY --chown=airflow:0 pyproject.toml README.md LICENSE CHANGELOG.md /opt/airflow-ckpt-provider/
COPY --chown=airflow:0 airflow_ckpt_provider /opt/airflow-ckpt-provider/airflow_ckpt_provider
COPY --chown=airflow:0 core /opt/airflow-ckpt-provider/core
# Airflow itself stays at the version of the image, its dependencies at those of its constraint file, which the image holds, and
# the Spark provider's client at the version of the cluster.
RUN grep -v '^pyspark' "${HOME}/constraints.txt" > /tmp/constraints.txt \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt \
    "apache-airflow==${AIRFLOW_VERSION}" "pyspark-client==4.0.0" \
    /opt/airflow-ckpt-provider/core "/opt/airflow-ckpt-provider[amazon,databricks,delta,encryption,kafka,spark]"
# The example stream and its producer.
COPY --chown=airflow:0 demo /opt/airflow-ckpt-provider/demo
ENV PYTHONPATH=/opt/airflow-ckpt-provider PYTHONUNBUFFERED=1
