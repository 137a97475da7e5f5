#!/bin/sh
# Print a Python that the locked versions run on, or say in one line what is missing (exit 2).
for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.13 python; do
    [ -n "$candidate" ] || continue
    # Run it: a shim may stand on PATH for a Python that is not installed.
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; then
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            command -v "$candidate"
            exit 0
        fi
        without_venv=$("$candidate" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    fi
done
if [ -n "${without_venv:-}" ]; then
    echo "missing: the venv module of $without_venv; get it with: apt-get install $without_venv-venv" >&2
else
    found=$(python3 --version 2>/dev/null) || found=none
    echo "missing: Python 3.11, 3.12 or 3.13 (found: $found); get it with: apt-get install python3.11 python3.11-venv, or name yours: make PYTHON=/path/to/python3.11" >&2
fi
exit 2
