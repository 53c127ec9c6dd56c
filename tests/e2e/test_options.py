"""The command line: a wrong value ends with exit code 2 and one line that names it."""

import socket
import subprocess

import pytest
from fleet import EXE, MODEL, SLOWNESS

NODE = ["prefill", f"--model={MODEL}"]


def run(*arguments: str, seconds: float = 20) -> subprocess.CompletedProcess:
    return subprocess.run(
        [EXE, *arguments], capture_output=True, text=True, timeout=seconds * SLOWNESS, check=False
    )


@pytest.mark.parametrize(
    "arguments, name",
    [
        ([], "role"),
        (["server"], "server"),
        (["prefill", "decode"], "role"),
        ([*NODE, "--threads=-1"], "--threads=-1"),
        ([*NODE, "--threads=two"], "--threads=two"),
        ([*NODE, "--kv_pool_bytes=5"], "--kv_pool_bytes=5"),
        ([*NODE, "--kv_pool_bytes=99999999999999999999"], "--kv_pool_bytes"),
        ([*NODE, "--isa=neon"], "--isa=neon"),
        ([*NODE, "--activations=int4"], "--activations=int4"),
        ([*NODE, "--listen=nowhere"], "--listen=nowhere"),
        ([*NODE, "--listen=127.0.0.1:70000"], "--listen=127.0.0.1:70000"),
        ([*NODE, "--transfer_listen=x"], "--transfer_listen=x"),
        ([*NODE, "--drain_timeout=soon"], "--drain_timeout=soon"),
        ([*NODE, "--drain_timeout=-1s"], "--drain_timeout"),
        ([*NODE, "--transport=pigeon"], "--transport=pigeon"),
        ([*NODE, "--no_such_option=1"], "--no_such_option"),
        ([*NODE, "--threads"], "--threads"),
        ([*NODE, "--flagfile=/nowhere"], "--flagfile=/nowhere"),
        (["prefill"], "--model"),
        (["router"], "--nodes"),
        (["router", "--nodes=,"], "--nodes"),
        (["router", "--nodes=127.0.0.1"], "--nodes=127.0.0.1"),
        ([*NODE, "--node_id=a\nb"], "--node_id"),
        (["router", "--nodes=127.0.0.1:9001", "--policy=best"], "--policy=best"),
    ],
)
def test_a_wrong_value_is_named(arguments, name):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert name in line


def test_help_lists_every_option_with_default_and_range():
    ended = run("--help")
    assert ended.returncode == 0 and ended.stderr == ""
    for part in ("--listen", "--transfer_listen", "--model", "--nodes", "--drain_timeout", "router",
                 "default", "one of auto, portable", "a whole number from"):  # fmt: skip
        assert part in ended.stdout
    assert run("prefill", "--help").stdout == ended.stdout


def test_flagfile_gives_options_and_a_wrong_one_in_it_is_named(tmp_path):
    flags = tmp_path / "node.flags"
    flags.write_text(f"# a node\n--model={MODEL}\n\n--threads=1\n--isa=neon\n")
    ended = run("decode", f"--flagfile={flags}")
    assert ended.returncode == 2 and "--isa=neon" in ended.stderr


# ---- a model file that is none

GGUF_HEADER = b"GGUF" + (3).to_bytes(4, "little")


def bad_files(folder) -> dict[str, bytes]:
    with open(MODEL, "rb") as model:
        start = model.read(1 << 20)
    return {
        "empty": b"",
        "text": b"this is no model\n" * 100,
        "magic_only": b"GGUF",
        "huge_counts": GGUF_HEADER + b"\xff" * 16,
        "cut_short": start,
        "old_version": b"GGUF" + (1).to_bytes(4, "little") + start[8:],
    }


@pytest.mark.parametrize(
    "name",
    ["empty", "text", "magic_only", "huge_counts", "cut_short", "old_version", "missing", "folder"],
)
def test_a_bad_model_file_is_one_clear_error(name, tmp_path):
    path = tmp_path / f"{name}.gguf"
    if name == "folder":
        path.mkdir()
    elif name != "missing":
        path.write_bytes(bad_files(tmp_path)[name])
    ended = run("both", f"--model={path}", "--listen=127.0.0.1:0")
    assert ended.returncode == 1, (ended.returncode, ended.stderr)
    errors = [line for line in ended.stderr.splitlines() if "error" in line]
    assert len(errors) == 1 and str(path) in errors[0], ended.stderr


def test_a_taken_port_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments in (
            ["router", "--nodes=127.0.0.1:9", f"--listen=127.0.0.1:{port}"],
            ["decode", f"--model={MODEL}", f"--listen=127.0.0.1:{port}"],
            [
                "decode",
                f"--model={MODEL}",
                "--listen=127.0.0.1:0",
                f"--transfer_listen=127.0.0.1:{port}",
            ],
        ):
            ended = run(*arguments)
            assert ended.returncode == 1, (arguments, ended.stderr)
            assert f"127.0.0.1:{port}" in ended.stderr, ended.stderr


def test_a_taken_port_of_metrics_ends_at_once_though_all_else_has_begun():
    """Nothing of what is torn down again keeps the process: gRPC did, for up to 10 s."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["all", f"--model={MODEL}", "--listen=127.0.0.1:0", f"--metrics_listen={address}"]
        for _ in range(4):
            ended = run(*arguments, seconds=6)
            assert ended.returncode == 1
            (line,) = [line for line in ended.stderr.splitlines() if "error" in line]
            assert f"--metrics_listen: cannot listen on {address}" in line
