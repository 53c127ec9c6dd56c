#!/usr/bin/env bash
# From a fresh machine to an answer of a real model: installs what is missing, fetches the model,
# builds, starts `pdserve all`, asks once, and stays up until Ctrl-C. A second run takes seconds.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

usage() {
  cat <<'TEXT'
usage: deploy/quickstart.sh [--check] [--port N]
  --check   end after the first answer, with exit code 0
  --port N  port of the HTTP server on 127.0.0.1, from 1 to 65535; default 8000
TEXT
}

check=0
port=8000
while [ $# -gt 0 ]; do
  case "$1" in
    --check) check=1 ;;
    --port=*) port="${1#--port=}" ;;
    --port)
      port="${2:-}"
      shift
      ;;
    --help | -h)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift || true
done
if ! [[ "$port" =~ ^[0-9]{1,5}$ ]] || [ "$port" -lt 1 ] || [ "$port" -gt 65535 ]; then
  echo "quickstart.sh: --port=$port: want a number from 1 to 65535" >&2
  exit 2
fi

cd "$root"
step "1/6 port $port"
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  fail "something listens on 127.0.0.1:$port already" \
    "end it, or choose another port: deploy/quickstart.sh --port $((port < 65535 ? port + 1 : 8000))"
fi

step "2/6 packages"
deploy/packages.sh

step "3/6 model"
model="$(deploy/fetch_model.sh)"

step "4/6 build (minutes on the first run)"
need_space "$root" 3000
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
mkdir -p build
cmake --preset release >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  fail "cmake could not configure the build" "read the lines above; if a package is missing, run deploy/packages.sh"
}
cmake --build --preset release --target pdserve >&2 ||
  fail "the build failed" "read the lines above; if they say that memory ran out, try CMAKE_BUILD_PARALLEL_LEVEL=1 deploy/quickstart.sh"

step "5/6 server"
log="$root/build/quickstart.log"
set -m # a process group of its own: Ctrl-C reaches this script alone, and the server is asked once
build/release/pdserve all --model="$model" --listen="127.0.0.1:$port" >"$log" 2>&1 &
server=$!
set +m
# shellcheck disable=SC2317  # called by trap
stop() {
  trap - INT TERM EXIT
  if kill -TERM "$server" 2>/dev/null; then echo "stopping the server" >&2; fi
  wait "$server" || true
}
trap 'stop; exit 130' INT TERM
trap stop EXIT

# The first start prepares the weights; a slow machine needs some seconds for it.
for _ in $(seq 600); do
  if ! kill -0 "$server" 2>/dev/null; then
    tail -n 5 "$log" >&2
    fail "the server ended" "the lines above are from its log, $log"
  fi
  if curl -sf -o /dev/null "http://127.0.0.1:$port/readyz"; then break; fi
  sleep 0.1
done
curl -sf -o /dev/null "http://127.0.0.1:$port/readyz" ||
  fail "the server is not ready after 60 s" "read its log: $log"

step "6/6 one request"
python3 deploy/first_request.py "$port" ||
  fail "the request was not answered" "read the server's log: $log"

if [ "$check" = 1 ]; then
  trap - INT TERM EXIT
  kill -TERM "$server"
  wait "$server" || fail "the server ended with an error" "read its log: $log"
  exit 0
fi
echo
echo "The server is up; its log is $log. Ctrl-C stops it."
wait "$server" || true
fail "the server ended by itself" "read its log: $log"
