#!/bin/sh
# Run the pinned uv, installing it into .cache/uv-env the first time. From the root of the checkout.
set -eu
version=0.13.8
if [ ! -w "${HOME:-/nonexistent}" ]; then
    export UV_CACHE_DIR="$PWD/.cache/uv"
fi
uv=.cache/uv-env/$version/bin/uv
if ! "$uv" --version >/dev/null 2>&1; then
    python=$(dev/find-python.sh) || exit 2
    rm -rf ".cache/uv-env/$version"
    "$python" -m venv ".cache/uv-env/$version"
    ".cache/uv-env/$version/bin/pip" install --quiet --disable-pip-version-check "uv==$version" >&2
fi
exec "$uv" "$@"
