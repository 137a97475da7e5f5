#!/bin/sh
# Run the pinned actionlint, built into .cache/go the first time (needs Go). From the root of the checkout.
set -eu
version=v1.7.12
actionlint=.cache/go/actionlint-$version/actionlint
if [ ! -x "$actionlint" ]; then
    command -v go >/dev/null || { echo "missing: Go; get it with: apt-get install golang" >&2; exit 2; }
    GOBIN="$PWD/${actionlint%/*}" GOFLAGS=-modcacherw go install "github.com/rhysd/actionlint/cmd/actionlint@$version"
fi
exec "$actionlint" "$@"
