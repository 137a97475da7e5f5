#!/bin/sh
# Run the pinned promtool of Prometheus, built into .cache/go the first time (needs Go, takes minutes). From the root of the checkout.
set -eu
version=v0.315.1
promtool=$PWD/.cache/go/promtool-$version/promtool
if [ ! -x "$promtool" ]; then
    command -v go >/dev/null || { echo "missing: Go; get it with: apt-get install golang" >&2; exit 2; }
    export GOFLAGS=-modcacherw GOWORK=off
    # In its own directory: `go install` refuses a module that replaces others.
    source=$(go mod download -json "github.com/prometheus/prometheus@$version" | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
    (cd "$source" && go build -o "$promtool" ./cmd/promtool)
fi
exec "$promtool" "$@"
