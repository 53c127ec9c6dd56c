#!/usr/bin/env bash
# Builds and runs the whole test suite. Ends with ctest's closing line and its exit code.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--preset NAME] [--filter REGEX] [--label REGEX] [--without REGEX]
  --preset NAME    release (default), dev, asan, tsan, or aarch64 (emulated): where and how it is built
  --filter REGEX   only tests whose name matches
  --label REGEX    only tests with such a label (e2e, threads, ...)
  --without REGEX  no tests with such a label
  Of a selection only what it needs is built.
TEXT
}

preset=release
selection=()
while [ $# -gt 0 ]; do
  if [ "$1" = --help ]; then
    usage
    exit 0
  fi
  if [ $# -lt 2 ]; then
    usage >&2
    exit 2
  fi
  case "$1" in
    --preset) preset="$2" ;;
    --filter) selection+=(--tests-regex "$2") ;;
    --label) selection+=(--label-regex "$2") ;;
    --without) selection+=(--label-exclude "$2") ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift 2
done

cd "$root"
deploy/packages.sh --dev
PD_MODEL="${PD_MODEL:-$(deploy/fetch_model.sh)}"
export PD_MODEL

step "python for the end-to-end tests"
venv="$cache_dir/venv"
wanted="$(sha256sum tests/e2e/requirements.txt)"
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$venv/wanted" 2>/dev/null)" != "$wanted" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" || fail "python3 -m venv failed" "run deploy/packages.sh"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --requirement tests/e2e/requirements.txt >&2 ||
    fail "pip could not install tests/e2e/requirements.txt" "check the network and run this again"
  echo "$wanted" >"$venv/wanted"
fi

if [ "$preset" = aarch64 ]; then deploy/aarch64_root.sh; fi

step "build ($preset)"
# Another checkout of the same sources finds its objects in the compiler cache.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
need_space "$root" 4000
cmake --preset "$preset" -DPD_TEST_PYTHON="$venv/bin/python" \
  ${PD_CARGO_TARGET_DIR:+-DPD_CARGO_TARGET_DIR="$PD_CARGO_TARGET_DIR"} >&2 ||
  fail "cmake could not configure the build" "read the lines above"
# Of a selection only what it needs: a unit test is a target of its name, others run the program.
targets=()
if [ "${#selection[@]}" != 0 ]; then
  names="$(ctest --test-dir "build/$preset" --show-only "${selection[@]}" | sed -n 's/^ *Test *#[0-9]*: //p')"
  for name in $names; do
    ninja -C "build/$preset" -t query "$name" >/dev/null 2>&1 || name=pdserve
    targets+=(--target "$name")
  done
fi
cmake --build --preset "$preset" "${targets[@]}" >&2 || fail "the build failed" "read the lines above"

step "tests ($preset)"
# A sanitizer's report ends the process with an exit code that no test expects.
export ASAN_OPTIONS="abort_on_error=0:detect_stack_use_after_return=1:exitcode=99"
export UBSAN_OPTIONS="print_stacktrace=1:exitcode=99"
export TSAN_OPTIONS="exitcode=99:second_deadlock_stack=1:suppressions=$root/tests/tsan.supp"
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "${selection[@]}"
