# Airflow with this package and the clients the deployment needs.
FROM apache/airflow:3.3.2-python3.12
COPY --chown=airflow:0 pyproject.toml README.md LICENSE CHANGELOG.md /opt/airflow-ckpt-provider/
COPY --chown=airflow:0 airflow_ckpt_provider /opt/airflow-ckpt-provider/airflow_ckpt_provider
# Airflow itself stays at the version of the image.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/airflow-ckpt-provider[amazon,delta,kafka]"
