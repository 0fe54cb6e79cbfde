#!/bin/sh
# Run the first Python of 3.11 to 3.14 that works: $PYTHON where it is set, else from PATH.
for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
        >/dev/null 2>&1; then
        exec "$candidate" "$@"
    fi
done
echo "error: no Python of 3.11 to 3.14 found (tried: ${PYTHON:-python3, python3.11 to python3.14})" >&2
echo "hint: apt-get install python3 python3-venv, or PYTHON=/path/to/python make ..." >&2
exit 2
