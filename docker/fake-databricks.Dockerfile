# The workspace of `make fake-databricks`, for trying the DAGs for Lakeflow pipelines; needs nothing but duckdb.
FROM python:3.12.13-slim-bookworm
RUN pip install --no-cache-dir duckdb==2.0.0
WORKDIR /opt/fake-databricks
COPY tests/fake_databricks tests/fake_databricks
ENV PYTHONUNBUFFERED=1
USER nobody
CMD ["python", "-m", "tests.fake_databricks", "--address", "0.0.0.0"]
