#!/bin/sh
# Feeds each parser of text that others write with random text, FUZZ_SECONDS (600) each. Ends with 1 at the first that
# panics; the case is then kept in launcher/proptest-regressions and tried first by every later test run.
#   tests/fuzz.sh [part of a name]
set -e
cd "$(dirname "$0")/.."
cargo test --release -q -p launcher --lib --no-run
names=$(cargo test --release -q -p launcher --lib -- --list 2>/dev/null | sed -n 's/: test$//p' | grep -E 'any_text|any_bytes' | grep -F "${1:-}")
for name in $names; do
    end=$(($(date +%s) + ${FUZZ_SECONDS:-600}))
    cases=0
    while [ "$(date +%s)" -lt "$end" ]; do
        PROPTEST_CASES=${FUZZ_CASES:-20000} cargo test --release -q -p launcher --lib -- --exact "$name" >/tmp/fuzz.$$ 2>&1 || {
            cat /tmp/fuzz.$$
            rm -f /tmp/fuzz.$$
            echo "error: $name panicked" >&2
            exit 1
        }
        cases=$((cases + ${FUZZ_CASES:-20000}))
    done
    echo "$name: $cases cases"
done
rm -f /tmp/fuzz.$$
