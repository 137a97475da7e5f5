#!/bin/sh
# Resolve pyproject.toml again into requirements.lock: every version and hash, and no address of an index.
set -eu
dev/uv.sh pip compile --quiet --universal --python-version 3.11 --upgrade \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
    --extra amazon --extra databricks --extra delta --extra encryption --extra iceberg --extra kafka --extra spark --group dev --group bench --group docs \
    --no-emit-package airflow-ckpt-core pyproject.toml --output-file requirements.lock
if grep -n '://' requirements.lock; then
    echo "requirements.lock must not name an address" >&2
    exit 1
fi
