#!/usr/bin/env bash
# Runs every benchmark of a release build, one after the other, and prints the machine first: the
# text for bench/RESULTS.md. Bounded: a few minutes on two cores.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

cd "$root"
step "build"
PD_MODEL="${PD_MODEL:-$(deploy/fetch_model.sh)}"
export PD_MODEL
if ! cmake --preset release >/dev/null || ! cmake --build --preset release >&2; then
  fail "the build failed" "read the lines above; deploy/quickstart.sh installs what is missing"
fi

step "benchmarks"
echo "date: $(date -u +%F), commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
lscpu | grep -E '^(Model name|CPU\(s\)|Thread|Core|L2|L3)' || true
echo "memory: $(awk '/MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo)"
for bench in build/release/bench/*_bench; do
  [ -x "$bench" ] || continue
  printf '\n## %s\n' "$(basename "$bench")"
  "$bench"
done
printf '\n## serve_bench\n'
python3 bench/serve_bench.py
printf '\n## latency_bench\n'
python3 bench/latency_bench.py
