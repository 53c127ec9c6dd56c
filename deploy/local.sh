#!/usr/bin/env bash
# All roles as processes on this machine, in one terminal: a router on 127.0.0.1:8000, a prefill node
# and a decode node, their logs marked by role. Ctrl-C stops them all.
# Wants a build (deploy/quickstart.sh makes one). Options go to all three: deploy/local.sh --threads=1
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

step "local"
program="${PD_EXE:-$root/build/release/pdserve}"
[ -x "$program" ] || fail "$program is not there" "build it: deploy/quickstart.sh --check"
model="${PD_MODEL:-$("$root/deploy/fetch_model.sh")}"

pids=()
# shellcheck disable=SC2317  # called by trap
stop() {
  trap - INT TERM EXIT
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  wait
}
trap 'stop; exit 0' INT TERM
trap stop EXIT

# role NAME ARGUMENT...
role() {
  local name="$1"
  shift
  set -m # a process group of its own: Ctrl-C reaches this script alone, which asks each role once
  "$program" "$name" "$@" > >(sed -u "s/^/[$name] /") 2>&1 &
  pids+=($!)
  set +m
}
role prefill --model="$model" --listen=127.0.0.1:9001 --metrics_listen=127.0.0.1:9101 "$@"
role decode --model="$model" --listen=127.0.0.1:9002 --metrics_listen=127.0.0.1:9102 "$@"
role router --listen=127.0.0.1:8000 --nodes=127.0.0.1:9001,127.0.0.1:9002 "$@"

wait -n || true
fail "one of the roles ended" "read its lines above"
