#!/usr/bin/env bash
# Installs what building and running pdserve needs on Debian 12 and Ubuntu 24.04, a new enough cargo
# included; with --dev also what the tests and checks need. Installs only what is missing, so that a
# second run takes no time.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

dev=0
case "${1:-}" in
  "") ;;
  --dev) dev=1 ;;
  *)
    echo "usage: deploy/packages.sh [--dev]" >&2
    exit 2
    ;;
esac

step "packages"
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  fail "this is no Debian or Ubuntu (no apt-get)" \
    "install by hand what the lists in deploy/packages.sh name, then run the later steps: deploy/fetch_model.sh, cmake --preset release, cmake --build --preset release"
fi
# shellcheck source=/dev/null
. /etc/os-release

boost=libboost-dev
if [ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ]; then boost=libboost1.81-dev; fi
wanted=(
  g++ cmake ninja-build ccache mold pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libspdlog-dev libfmt-dev prometheus-cpp-dev nlohmann-json3-dev "$boost"
  libssl-dev zlib1g-dev libc-ares-dev libgtest-dev libbenchmark-dev
  python3 python3-venv curl ca-certificates
)

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
lists_are_fresh=0

# fresh_lists HINT...: apt's package lists, fetched at most once in a run.
fresh_lists() {
  if [ "$lists_are_fresh" = 1 ]; then return; fi
  if [ "${#as_root[@]}" != 0 ] && ! command -v sudo >/dev/null; then
    fail "packages are missing, and neither root nor sudo is here to install them" \
      "as root: apt-get update && apt-get install -y --no-install-recommends $*"
  fi
  "${as_root[@]}" apt-get update -q >&2 ||
    fail "apt-get update cannot reach the package servers" \
      "check the network (or the proxy in apt's configuration) and run this again"
  lists_are_fresh=1
}

# clang_version: the newest of the versions that this release has; the formatter's output differs
# between versions, and 19 is the one that decides.
clang_version() {
  local version
  for version in 19 18; do
    if apt-cache show "clang-format-$version" >/dev/null 2>&1; then
      echo "$version"
      return
    fi
  done
  echo 19
}

if [ "$dev" = 1 ]; then
  version=19
  if ! command -v clang-tidy-19 >/dev/null; then
    if ! command -v clang-tidy-18 >/dev/null; then fresh_lists "${wanted[@]}" clang-tidy; fi
    version="$(clang_version)"
  fi
  wanted+=("clang-$version" "clang-format-$version" "clang-tidy-$version" shellcheck git)
  wanted+=(g++-aarch64-linux-gnu qemu-user)
fi

missing_packages() {
  local installed name
  installed="$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null |
    awk '$1 == "ii" { print $2 }')" || true
  for name in "$@"; do
    grep -qxF -- "$name" <<<"$installed" || printf '%s\n' "$name"
  done
}

# apt_install NAME...: one update, then the packages.
apt_install() {
  need_space /var 3000
  fresh_lists "$@"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "$@" >&2 ||
    fail "apt-get could not install: $*" "read the lines above; then run this again"
}

mapfile -t missing < <(missing_packages "${wanted[@]}")
if [ "${#missing[@]}" != 0 ]; then
  echo "missing: ${missing[*]}" >&2
  apt_install "${missing[@]}"
fi

# ---- cargo

cargo_wanted="$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/text/rust/Cargo.toml")"

cargo_is_new_enough() {
  local found
  found="$(cargo --version 2>/dev/null | awk '{ print $2 }')"
  [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$cargo_wanted" "$found" | sort -V | head -n 1)" = "$cargo_wanted" ]
}

# candidate_is_new_enough PACKAGE: what apt would install.
candidate_is_new_enough() {
  local found
  found="$(apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { print $2 }')"
  [ -n "$found" ] && [ "$found" != "(none)" ] && dpkg --compare-versions "$found" ge "$cargo_wanted"
}

# install_rustup: the distribution's, else the one of the Rust project.
install_rustup() {
  need_space "$HOME" 1500
  if apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]'; then
    apt_install rustup
    rustup default stable >&2 ||
      fail "rustup could not install the stable toolchain" "check the network and run this again"
    return
  fi
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal >&2 ||
    fail "the Rust installer could not be fetched or run" \
      "install cargo $cargo_wanted or newer (https://rustup.rs tells how) and run this again"
}

# install_cargo: the distribution's where one of its packages is new enough (Debian 12 keeps a new
# one as cargo-web, Ubuntu numbers them), else by rustup.
install_cargo() {
  local name
  fresh_lists cargo
  # By their whole names: beside cargo-1.85 there is cargo-1.85-doc.
  for name in cargo cargo-web $(apt-cache pkgnames cargo-1. | awk '/^cargo-1\.[0-9]+$/' | sort -rV); do
    if ! candidate_is_new_enough "$name"; then continue; fi
    apt_install "$name"
    if ! cargo_is_new_enough && [ -x "/usr/bin/$name" ]; then  # numbered: not called cargo
      mkdir -p "$HOME/.cargo/bin"
      ln -sf "/usr/bin/$name" "$HOME/.cargo/bin/cargo"
      ln -sf "/usr/bin/rustc-${name#cargo-}" "$HOME/.cargo/bin/rustc"
    fi
    return
  done
  install_rustup
}

if ! cargo_is_new_enough; then
  step "cargo $cargo_wanted or newer"
  if ! command -v rustup >/dev/null; then
    install_cargo
  elif ! rustup toolchain install stable --profile minimal >&2 || ! rustup default stable >&2; then
    fail "rustup could not install the stable toolchain" "check the network and run this again"
  fi
  hash -r
  PATH="$HOME/.cargo/bin:$PATH"
  cargo_is_new_enough ||
    fail "cargo is $(cargo --version 2>/dev/null || echo missing), $cargo_wanted or newer is needed" \
      "remove the old one, or put a newer one first in PATH, and run this again"
fi
