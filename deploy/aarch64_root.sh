#!/usr/bin/env bash
# Unpacks the arm64 libraries that a cross build links (preset aarch64) into build/aarch64-root; the
# system itself learns of no second architecture. A second run takes no time. Exit code 77: this
# system's package servers have none for arm64.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

target="$root/build/aarch64-root"
wanted=(libabsl-dev:arm64 libgtest-dev:arm64 libssl-dev:arm64 nlohmann-json3-dev)

step "libraries for aarch64"
if [ "$(cat "$target/wanted" 2>/dev/null)" = "${wanted[*]}" ]; then exit 0; fi
rm -rf "$target"
mkdir -p "$target/apt/lists/partial" "$target/apt/archives/partial"
need_space "$target" 500
options=(
  -q -o APT::Architectures::="$(dpkg --print-architecture)" -o APT::Architectures::=arm64
  -o Dir::State::Lists="$target/apt/lists" -o Dir::Cache="$target/apt" -o Debug::NoLocking=1
  -o APT::Sandbox::User="$(id -un)"
)
if ! apt-get "${options[@]}" update >&2 ||
  ! (cd "$target/apt" && apt-get "${options[@]}" download "${wanted[@]}" >&2); then
  echo "no arm64 packages from this system's package servers" >&2
  exit 77
fi
for package in "$target"/apt/*.deb; do dpkg-deb --extract "$package" "$target"; done
rm -rf "$target/apt"
echo "${wanted[*]}" >"$target/wanted"
