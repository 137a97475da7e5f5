#!/bin/sh
# Print a Python that the locked versions run on, or say in one line what is missing (exit 2). It is the one that PYTHON names, or
# the first on PATH that was built with optimizations (the tests need a fifth more time without), or else the first one.
set -f
first='' without_venv=''
try() { # Run it: a shim may stand on PATH for a Python that is not installed.
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 || return 1
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 && return 0
    without_venv=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    return 1
}
# A distribution's own is optimized, and its sysconfig does not say so.
optimized='import sys, sysconfig; c = str(sysconfig.get_config_var("CONFIG_ARGS")); sys.exit("--enable-optimizations" not in c and sys.base_prefix != "/usr")'
if [ -n "${PYTHON:-}" ]; then
    try "$PYTHON" && command -v "$PYTHON" && exit 0
    echo "PYTHON=$PYTHON is no Python 3.11, 3.12 or 3.13 with the module venv; name another one, or none" >&2
    exit 2
fi
for name in python3 python3.11 python3.12 python3.13 python; do
    IFS=:
    for directory in $PATH; do
        candidate=${directory:-.}/$name
        [ -x "$candidate" ] && try "$candidate" || continue
        : "${first:=$candidate}"
        if "$candidate" -c "$optimized" >/dev/null 2>&1; then
            echo "$candidate"
            exit 0
        fi
    done
    unset IFS
done
if [ -n "$first" ]; then
    echo "$first"
    exit 0
fi
if [ -n "$without_venv" ]; then
    echo "missing: the venv module of $without_venv; get it with: apt-get install $without_venv-venv" >&2
else
    found=$(python3 --version 2>/dev/null) || found=none
    echo "missing: Python 3.11, 3.12 or 3.13 (found: $found); get it with: apt-get install python3.11 python3.11-venv, or name yours: make PYTHON=/path/to/python3.11" >&2
fi
exit 2
