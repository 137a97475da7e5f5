#!/usr/bin/env bash
# Runs a command with its temporary files in memory, where Linux has room for them there: tests write many small files, and
# wait for a disk each time one is flushed.
set -euo pipefail
memory=/dev/shm
kib=$((6 * 1024 * 1024))
free() { df --output=avail -k "$memory" | tail -1; }
available() { awk '/^MemAvailable:/ {print $2}' /proc/meminfo; }
runs_programs() { printf '#!/bin/sh\n' >"$1" && chmod +x "$1" && "$1" && rm "$1"; }
if [ "$(stat -f -c %T "$memory" 2>/dev/null)" = tmpfs ] && [ -w "$memory" ] &&
    [ "$(free)" -gt "$kib" ] && [ "$(available)" -gt $((2 * kib)) ]; then
    directory=$(mktemp -d "$memory/tests.XXXX")
    chmod 1777 "$directory" # as /tmp: some tests run programs as another user
    trap 'rm -rf "$directory"' EXIT
    if runs_programs "$directory/probe" 2>/dev/null; then
        export TMPDIR=$directory
    fi
fi
"$@"
