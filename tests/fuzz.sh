#!/bin/sh
# Feeds each parser of text that others write with random text, FUZZ_SECONDS (600) each, one on every CPU at a time. Ends
# with 1 if one panics; the case is then kept in launcher/proptest-regressions and tried first by every later test run.
#   tests/fuzz.sh [part of a name]
set -e
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
profile=${FUZZ_PROFILE:-release}
built=$("$cargo" test --profile "$profile" -p launcher --lib --no-run 2>&1) || { printf '%s\n' "$built" >&2; exit 1; }
binary=$(printf '%s\n' "$built" | sed -n 's/.*Executable unittests .*(\(.*\))$/\1/p')
case $binary in /*) ;; *) binary=$PWD/$binary ;; esac
[ -x "$binary" ] || { echo "error: the tests of launcher were not built" >&2; exit 1; }
cd launcher
names=$("$binary" --list | sed -n 's/: test$//p' | grep -E 'any_text|any_bytes' | grep -F "${1:-}")
one='
    end=$(($(date +%s) + ${FUZZ_SECONDS:-600}))
    cases=0
    while [ "$(date +%s)" -lt "$end" ]; do
        said=$(PROPTEST_CASES=${FUZZ_CASES:-20000} "$0" --exact "$1" 2>&1) || {
            printf "%s\nerror: %s panicked\n" "$said" "$1" >&2
            exit 255
        }
        cases=$((cases + ${FUZZ_CASES:-20000}))
    done
    echo "$1: $cases cases in ${FUZZ_SECONDS:-600} s"
'
printf '%s\n' $names | xargs -P "${FUZZ_JOBS:-$(nproc)}" -I NAME sh -c "$one" "$binary" NAME
