#!/usr/bin/env bash
# Compares the engine with llama.cpp and, where it can be had, OpenVINO GenAI: same machine, same
# file, same threads, alternating. Builds llama.cpp for this machine outside the tree, out of a
# Python package that carries its source, and makes its best 4-bit file and a bf16 one of the same
# weights. A second run only measures.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

package="llama-cpp-python"
version="0.3.36"
sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
commit="0c1e570" # of llama.cpp, as the package carries it
openvino="openvino-genai==2026.4.1.0"

usage() {
  cat <<'TEXT'
usage: bench/compare_llamacpp.sh [options]
  --rounds=N           rounds of every engine, alternating; default 3
  --threads=N          compute threads of each engine; default 2
  --works=LIST         what to measure, as engine_bench names it; default: the goals' six
  --markdown           print the section for bench/RESULTS.md
  --no-openvino        leave OpenVINO GenAI out
  --no-bf16            leave the rows of bf16 weights out
  --setup-only         fetch and build the peers, measure nothing
  --engine-bench=PATH  a built engine_bench; default: build/release's, built first
The model is $PD_MODEL, else the default one. What is built lies under the cache folder's peers/.
TEXT
}

rounds=3
threads=2
works="decode:1,decode:1:2048,decode:8,decode:32,prefill:512,prefill:2048"
bf16_works="decode:1,prefill:512"
engine_bench=""
want_openvino=1
setup_only=0
table=()
for option in "$@"; do
  case "$option" in
    --rounds=*) rounds="${option#*=}" ;;
    --threads=*) threads="${option#*=}" ;;
    --works=*) works="${option#*=}" ;;
    --engine-bench=*) engine_bench="${option#*=}" ;;
    --markdown) table=(--markdown) ;;
    --no-openvino) want_openvino=0 ;;
    --no-bf16) bf16_works="" ;;
    --setup-only) setup_only=1 ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done
for number in "$rounds" "$threads"; do
  if ! [[ "$number" =~ ^[1-9][0-9]{0,2}$ ]]; then
    echo "compare_llamacpp.sh: $number: --rounds and --threads want a number from 1 to 999" >&2
    exit 2
  fi
done

peers="$cache_dir/peers"
# A build for this machine's instructions is of use on another only where they are the same.
cpu="$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo | sha256sum | cut -c1-8)"
llama="$peers/llama.cpp-$version-$cpu"
archive="$peers/llama_cpp_python-$version.tar.gz"

# Two comparisons at a time would measure each other.
take_lock() {
  step "lock"
  mkdir -p "$peers" || fail "cannot make $peers" "make it writable, or set XDG_CACHE_HOME"
  exec 9>"$peers/lock"
  flock -n 9 || fail "another comparison runs on this machine" "wait for its end"
}

is_archive_whole() { echo "$sha256  $archive" | sha256sum --check --status 2>/dev/null; }

fetch_llama() {
  step "source of llama.cpp ($package $version, 77 MB)"
  if is_archive_whole; then return; fi
  command -v python3 >/dev/null || fail "python3 is missing" "run deploy/packages.sh first"
  need_space "$peers" 2000
  rm -f "$archive"
  # With the hash named, pip refuses another file before it runs anything out of it.
  echo "$package==$version --hash=sha256:$sha256" >"$peers/requirements.txt"
  ensure_venv "$peers/pip"
  "$peers/pip/bin/python" -m pip --disable-pip-version-check --retries 2 --timeout 60 download --quiet \
    --no-deps --no-binary "$package" --dest "$peers" -r "$peers/requirements.txt" >&2 || true
  is_archive_whole || fail "pip could not download $package $version with sha256 $sha256" \
    "check the network (or pip's index and proxy) and run this again; or put the file at $archive yourself"
}

# ensure_venv FOLDER: a virtual environment of its own, so that no other is changed.
ensure_venv() {
  if "$1/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  rm -rf "$1"
  python3 -m venv "$1" >&2 || fail "cannot make a virtual environment at $1" \
    "install python3-venv (deploy/packages.sh) and run this again"
}

unpack_llama() {
  step "unpack llama.cpp"
  rm -rf "$llama"
  mkdir -p "$llama/source"
  tar -xzf "$archive" -C "$llama/source" --strip-components=3 --exclude='*/.git' \
    --exclude='*/tools/ui/*' "llama_cpp_python-$version/vendor/llama.cpp" ||
    fail "the archive has no vendor/llama.cpp" "remove $archive and run this again"
  # GCC 12 takes this file's tile loads for no uses of what was stored before: it crashes when run.
  echo 'set_source_files_properties(ggml-cpu/amx/mmq.cpp PROPERTIES COMPILE_OPTIONS
    "$<$<CXX_COMPILER_ID:GNU>:-fno-tree-dse;-fno-dse>")' >>"$llama/source/ggml/src/CMakeLists.txt"
}

build_llama() {
  if [ -f "$llama/built" ]; then return; fi
  fetch_llama
  unpack_llama
  step "build llama.cpp (about ten minutes, once)"
  local log="$llama/build.log"
  cmake -S "$llama/source" -B "$llama/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_COMMIT="$commit" >"$log" 2>&1 ||
    fail "cmake refused llama.cpp; its words are in $log" "install what it misses and run this again"
  nice -n 19 cmake --build "$llama/build" -j 2 \
    --target llama-bench llama-batched-bench llama-quantize >>"$log" 2>&1 ||
    fail "llama.cpp did not compile; the compiler's words are in $log" "run this again; it starts anew"
  local compiler
  compiler="$(sed -n 's/^CMAKE_CXX_COMPILER:.*=//p' "$llama/build/CMakeCache.txt")"
  echo "llama.cpp $commit (of $package $version; $("$compiler" --version | head -n1); -march=native)" \
    >"$llama/built"
}

# quantize TYPE: makes the model's file of that type with llama.cpp's own recipe; sets `file`.
quantize() {
  step "$1 file of the same weights"
  # The size tells apart two models of one name.
  file="$llama/$(basename "${PD_MODEL%.gguf}").$(stat -Lc %s "$PD_MODEL").as-$1.gguf"
  if [ -f "$file" ]; then return; fi
  need_space "$llama" 1000
  "$llama/build/bin/llama-quantize" --allow-requantize "$PD_MODEL" "$file.part" "$1" 2 \
    >"$llama/quantize.log" 2>&1 ||
    fail "llama-quantize refused; its words are in $llama/quantize.log" "choose another PD_MODEL"
  mv "$file.part" "$file"
}

# Sets `openvino_python`, or leaves it empty: this peer may be missing.
install_openvino() {
  step "$openvino"
  openvino_python=""
  if [ "$want_openvino" = 0 ]; then return; fi
  local venv="$peers/openvino"
  if ! "$venv/bin/python" -c 'import openvino_genai' 2>/dev/null; then
    ensure_venv "$venv"
    "$venv/bin/python" -m pip --disable-pip-version-check --retries 2 --timeout 60 install --quiet \
      --only-binary=:all: "$openvino" >&2 || true
  fi
  if "$venv/bin/python" -c 'import openvino_genai' 2>/dev/null; then
    openvino_python="$venv/bin/python"
  else
    echo "skipped: pip could not install $openvino; the comparison goes on without it" >&2
  fi
}

build_ours() {
  step "build engine_bench"
  if [ -z "$engine_bench" ]; then
    if ! (cd "$root" && cmake --preset release >/dev/null &&
      cmake --build --preset release --target engine_bench >&2); then
      fail "the build failed" "read the lines above; deploy/quickstart.sh installs what is missing"
    fi
    engine_bench="$root/build/release/bench/engine_bench"
  fi
  [ -x "$engine_bench" ] || fail "$engine_bench cannot be run" "build the target engine_bench"
}

take_lock
PD_MODEL="${PD_MODEL:-$("$root/deploy/fetch_model.sh")}"
build_llama
quantize Q4_0
four_bit="$file"
quantize BF16
bf16="$file"
install_openvino
if [ "$setup_only" = 1 ]; then exit 0; fi
build_ours

step "rounds"
python3 "$root/bench/compare_rounds.py" --rounds="$rounds" --threads="$threads" --works="$works" \
  --bf16-works="$bf16_works" --engine-bench="$engine_bench" --llama="$llama/build/bin" \
  --llama-about="$(cat "$llama/built")" --openvino-python="$openvino_python" \
  --openvino-about="OpenVINO GenAI ${openvino#*==}" --model="$PD_MODEL" --four-bit="$four_bit" \
  --bf16="$bf16" "${table[@]}" ||
  fail "a comparison could not be made" "read the lines above"
