#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fast
# Tests that tests/sanitize.sh continues after it was stopped, what it counts, and its options. Stand-ins replace CMake and
# the compiler: a "program" is a copy of its source.
set -euo pipefail
: "${TUTTI_SOURCE_DIR:?}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}
mkdir -p "$work"/tree/tests/{io,core} "$work/bin"
cd "$work/tree"
cp "$TUTTI_SOURCE_DIR/tests/sanitize.sh" tests/
cat >"$work/bin/clang++-16" <<'S'
#!/usr/bin/env bash
[[ " $* " != *" -fsanitize=thread "* ]] || exit 1
if [[ $1 == --version ]]; then echo "a clang"; fi
S
# It knows a target for each test but io/test_absent, and for each writer.
cat >"$work/bin/cmake" <<'S'
#!/usr/bin/env bash
case " $* " in
  *" --preset "*) echo "-- tutti: tests_io_test_absent is not built: no library" ;;
  *" --target help "*) for f in tests/*/*.cpp; do echo "... $(sed -E 's,(.*)/(.*)/(.*).cpp,\1_\2_\3,' <<<"$f")"; done | grep -v absent ;;
  *)
    build=$2 status=0
    for word in "$@"; do
      [[ $word == tests_* ]] || continue
      IFS=_ read -r _ area name <<<"$word"
      if grep -q broken "tests/$area/$name.cpp"; then status=1 && continue; fi
      mkdir -p "$build/tests/$area"
      if ! cmp -s "tests/$area/$name.cpp" "$build/tests/$area/$name"; then
        cp "tests/$area/$name.cpp" "$build/tests/$area/$name" && chmod +x "$build/tests/$area/$name"
      fi
    done
    exit $status
    ;;
esac
S
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH CALLS=$work/calls
# program FILE LINE...: a test that notes that it runs.
program() {
  local file=$1
  shift
  # shellcheck disable=SC2016
  printf '#!/usr/bin/env bash\necho %s >>"$CALLS"\n' "$file" >"tests/$file"
  if (($#)); then printf '%s\n' "$@" >>"tests/$file"; fi
}
program core/test_a.cpp
program core/test_b.cpp 'echo "SKIP: no GPU"'
program io/test_absent.cpp
program io/test_bad.cpp 'exit 1'
program io/test_broken.cpp '# broken'
# shellcheck disable=SC2016
program io/test_stops.cpp '[ -e go ] || kill -KILL $(ps -o ppid= -p $PPID)'
program io/test_z.cpp
program io/writer.cpp
program io/test_script.sh '# sanitized: tests_io_writer'
calls() { grep -c "^$1\$" "$CALLS" || true; }

# It is killed in io/test_stops. The next start repeats no test that has passed.
tests/sanitize.sh --jobs 2 >"$work/out" 2>&1 && fail "it was not killed: $(cat "$work/out")"
[[ $(calls core/test_a.cpp) == 1 && $(calls io/test_stops.cpp) == 1 && $(calls io/test_z.cpp) == 0 ]] || fail "killed: $(cat "$CALLS")"
touch go
status=0
tests/sanitize.sh --jobs 2 >"$work/out" 2>&1 || status=$?
[[ $status == 1 ]] || fail "two failed tests: exit $status"
[[ $(calls core/test_a.cpp) == 1 && $(calls io/test_stops.cpp) == 2 && $(calls io/test_z.cpp) == 1 && $(calls io/test_script.sh) == 1 ]] ||
  fail "it does not continue: $(cat "$CALLS")"
for line in '| core | asan-ubsan | 2 | 0 | 1 |' '| io | asan-ubsan | 3 | 2 | 1 |' 'skipped: asan-ubsan core/test_b: no GPU' \
  'skipped: asan-ubsan io/test_absent: not built: no library' 'FAILED: asan-ubsan io/test_bad' \
  'FAILED: asan-ubsan io/test_broken (does not compile)' '5 tests pass with asan-ubsan of a clang, 2 fail, 2 are skipped'; do
  grep -qF "$line" "$work/out" || fail "no line \"$line\": $(cat "$work/out")"
done

# A changed program, a changed script and --again run again.
program core/test_a.cpp 'true'
program io/test_script.sh '# sanitized: tests_io_writer' true
tests/sanitize.sh --jobs 2 >"$work/out" 2>&1 && fail "two failed tests are no failure"
[[ $(calls core/test_a.cpp) == 2 && $(calls core/test_b.cpp) == 1 && $(calls io/test_script.sh) == 2 ]] || fail "changes: $(cat "$CALLS")"
tests/sanitize.sh --only core --again >"$work/out" 2>&1 || fail "--only core --again: $(cat "$work/out")"
[[ $(calls core/test_a.cpp) == 3 && $(calls core/test_b.cpp) == 2 && $(calls io/test_script.sh) == 2 ]] || fail "--again: $(cat "$CALLS")"

for wrong in "--preset nonesuch" "--compiler clang++-16 --preset tsan" "--only nonesuch" "--jobs 0" "--seconds x" "--only" "--nonesuch"; do
  status=0
  # shellcheck disable=SC2086
  tests/sanitize.sh $wrong >/dev/null 2>"$work/err" || status=$?
  [[ $status == 2 ]] || fail "$wrong: exit $status"
  grep -q 'expected' "$work/err" || fail "$wrong: $(cat "$work/err")"
done
echo "all good"
