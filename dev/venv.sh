#!/bin/sh
# Make .venv hold exactly what requirements.lock says, and both of our distributions in editable form. From the root of the checkout.
# AIRFLOW=3.1 replaces Airflow by the newest release of that minor version.
set -eu
# The path is part of the key: a virtual environment that was moved or copied does not work.
key=$( (cat requirements.lock pyproject.toml core/pyproject.toml dev/venv.sh; pwd; echo "${AIRFLOW:-}") | cksum)
[ "$(cat .venv/ready 2>/dev/null)" = "$key" ] && .venv/bin/python -c '' 2>/dev/null && exit 0

python=$(dev/find-python.sh) || exit 2
echo "setting up .venv (about a minute the first time)" >&2
rm -f .venv/ready
if ! .venv/bin/python -c '' 2>/dev/null || [ "$(cat .venv/place 2>/dev/null)" != "$PWD" ]; then
    rm -rf .venv
    dev/uv.sh venv --quiet --python "$python" .venv
    pwd > .venv/place
fi
dev/uv.sh pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock
[ -z "${AIRFLOW:-}" ] || dev/uv.sh pip install --quiet --python .venv/bin/python "apache-airflow==$AIRFLOW.*"
# Without isolation: the build tools are in the lock too.
dev/uv.sh pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable core --editable .
echo "$key" > .venv/ready
