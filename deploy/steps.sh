# shellcheck shell=bash
# Sourced by the scripts: progress lines, and one way to fail. No step fails without saying which
# and how to go on.

# shellcheck disable=SC2034  # used where this is sourced
cache_dir="${XDG_CACHE_HOME:-$HOME/.cache}/pdserve"
if [ -d "$HOME/.cargo/bin" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi

step_name=""

# step NAME: what begins now.
step() {
  step_name="$1"
  printf '== %s\n' "$1" >&2
}

# fail WHAT HOW: ends the script; HOW tells what to do about it.
fail() {
  printf '\npdserve: step "%s" failed: %s\n  how to go on: %s\n' "$step_name" "$1" "$2" >&2
  exit 1
}

# What fails without words of its own is named too.
# shellcheck disable=SC2317  # called by trap
name_failure() {
  local code=$?
  printf 'pdserve: step "%s" ended with exit code %s (%s, line %s)\n' \
    "$step_name" "$code" "${BASH_SOURCE[1]}" "$1" >&2
  exit "$code"
}
set -o errtrace
trap 'name_failure "$LINENO"' ERR

# need_space FOLDER MEGABYTES: fails where the file system of FOLDER (or of its nearest parent) has
# less free.
need_space() {
  local folder="$1" free
  while [ ! -d "$folder" ]; do folder="$(dirname "$folder")"; done
  free="$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')"
  if [ "$free" -lt "$2" ]; then
    fail "$folder has $free MB free, $2 MB are needed" "free some space and run this again"
  fi
}
