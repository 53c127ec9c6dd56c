"""Everything bad is an OpenAI-shaped 4xx before any prefill, and hurts nobody else."""

import json
import socket

import pytest
from fleet import Stream, completion

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
NAN = float("nan")


def chat(**fields) -> dict:
    return {"messages": HELLO, "max_tokens": 2, **fields}


def text(**fields) -> dict:
    return {"prompt": "hi", "max_tokens": 2, **fields}


# (path, body, the status wanted, what its message or param must name)
BAD = [
    (TEXT, b"", 400, ""),
    (TEXT, b"{", 400, ""),
    (TEXT, b"[]", 400, ""),
    (TEXT, b"null", 400, ""),
    (TEXT, b'"prompt"', 400, ""),
    (TEXT, b'{"prompt":"hi"} trailing', 400, ""),
    (TEXT, b'{"prompt":"\xff\xfe"}', 400, ""),
    (TEXT, b"[" * 100000, 400, ""),
    (TEXT, b'{"a":' * 5000, 400, ""),
    (TEXT, b'{"prompt":"hi","max_tokens":1e400}', 400, ""),
    (TEXT, {}, 400, "prompt"),
    (TEXT, text(prompt=None), 400, "prompt"),
    (TEXT, text(prompt=7), 400, "prompt"),
    (TEXT, text(prompt=[]), 400, "prompt"),
    (TEXT, text(prompt=""), 400, "prompt"),
    (TEXT, text(prompt=[-1]), 400, "prompt"),
    (TEXT, text(prompt=[1 << 40]), 400, "prompt"),
    (TEXT, text(prompt=[49152]), 400, "prompt"),
    (TEXT, text(prompt=[1.5]), 400, "prompt"),
    (TEXT, text(prompt=[None]), 400, "prompt"),
    (TEXT, text(prompt={"a": 1}), 400, "prompt"),
    (TEXT, text(prompt=[5] * 9000), 400, "context"),
    (TEXT, text(prompt=[5] * 100, max_tokens=8192), 400, "context"),
    (TEXT, text(max_tokens=0), 400, "max_tokens"),
    (TEXT, text(max_tokens=-1), 400, "max_tokens"),
    (TEXT, text(max_tokens="4"), 400, "max_tokens"),
    (TEXT, text(max_tokens=1.5), 400, "max_tokens"),
    (TEXT, text(max_tokens=1 << 62), 400, ""),
    (TEXT, text(temperature=-0.1), 400, "temperature"),
    (TEXT, text(temperature=2.1), 400, "temperature"),
    (TEXT, text(temperature="hot"), 400, "temperature"),
    (TEXT, text(temperature=[]), 400, "temperature"),
    (TEXT, text(temperature=NAN), 400, ""),
    (TEXT, text(top_p=0), 400, "top_p"),
    (TEXT, text(top_p=1.01), 400, "top_p"),
    (TEXT, text(top_k=-2), 400, "top_k"),
    (TEXT, text(top_k=2.5), 400, "top_k"),
    (TEXT, text(seed="x"), 400, "seed"),
    (TEXT, text(seed=1 << 70), 400, ""),
    (TEXT, text(n=0), 400, "n"),
    (TEXT, text(n=1000), 400, "n"),
    (TEXT, text(n=True), 400, "n"),
    (TEXT, text(stop=5), 400, "stop"),
    (TEXT, text(stop=[""]), 400, "stop"),
    (TEXT, text(stop=["a"] * 100), 400, "stop"),
    (TEXT, text(stop=[None]), 400, "stop"),
    (TEXT, text(stream="yes"), 400, "stream"),
    (TEXT, text(stream_options={"include_usage": True}), 400, "stream_options"),
    (TEXT, text(stream=True, stream_options=3), 400, "stream_options"),
    (TEXT, text(ignore_eos="no"), 400, "ignore_eos"),
    (TEXT, text(return_token_ids=1), 400, "return_token_ids"),
    (TEXT, text(model="nope"), 404, "nope"),
    (TEXT, text(model=5), 400, "model"),
    (TEXT, text(logprobs=3), 400, "logprobs"),
    (TEXT, text(echo=True), 400, "echo"),
    (TEXT, text(suffix="x"), 400, "suffix"),
    (TEXT, text(best_of=4), 400, "best_of"),
    (TEXT, text(logit_bias={"1": 5}), 400, "logit_bias"),
    (TEXT, text(no_such_field=1), 400, "no_such_field"),
    (CHAT, {}, 400, "messages"),
    (CHAT, chat(messages=None), 400, "messages"),
    (CHAT, chat(messages="hi"), 400, "messages"),
    (CHAT, chat(messages=[]), 400, "messages"),
    (CHAT, chat(messages=["hi"]), 400, "messages"),
    (CHAT, chat(messages=[{}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "user"}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "wizard", "content": "x"}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": 3, "content": "x"}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "messages"),
    (CHAT, chat(max_tokens=3, max_completion_tokens=4), 400, "max_"),
    (CHAT, chat(tools=[]), 400, "tools"),
    (CHAT, chat(response_format={"type": "json_object"}), 400, "response_format"),
    (CHAT, chat(frequency_penalty=1), 400, "frequency_penalty"),
    (CHAT, chat(logprobs=True), 400, "logprobs"),
    (CHAT, chat(kv_transfer_params={}), 400, "kv_transfer_params"),
    (CHAT, chat(prompt="hi"), 400, "prompt"),
    (CHAT, chat(messages=[{"role": "user", "content": "w " * 20000}]), 400, "context"),
]


def expect_error(status: int, answer: dict, wanted: int, name: str) -> None:
    assert status == wanted, (status, answer)
    error = answer["error"]
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert error["code"] is None or isinstance(error["code"], str)
    assert name in f"{error['message']} {error['param']}", error


@pytest.fixture(scope="module")
def before(split):
    """Prompt tokens computed before anything bad came."""
    return split.metric("pdserve_prefilled_tokens")


@pytest.mark.parametrize("case", BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_a_bad_request_is_refused_by_name(case, before, split):
    path, body, wanted, name = case
    status, answer = split.post(path, body)
    expect_error(status, answer, wanted, name)
    if isinstance(body, dict) and "stream" not in body and "stream_options" not in body:
        status, answer = split.post(path, {**body, "stream": True})
        expect_error(status, answer, wanted, name)


def test_none_of_them_reached_a_node(before, split):
    assert split.metric("pdserve_prefilled_tokens") == before
    split.expect_nothing_held(1)


@pytest.mark.parametrize(
    "method, path, wanted",
    [("GET", "/", 404), ("GET", "/v1/nothing", 404), ("POST", "/v1/nothing", 404),
     ("GET", TEXT, 405), ("DELETE", CHAT, 405), ("POST", "/v1/models", 405),
     ("GET", "/v1/models/none", 404), ("PUT", "/metrics", 405), ("GET", "/" + "a" * 5000, 404)],
)  # fmt: skip
def test_a_wrong_route_is_told(method, path, wanted, split):
    status, headers, answer = split.request(method, path)
    expect_error(status, json.loads(answer), wanted, "")
    if wanted == 405:
        assert {name.lower(): value for name, value in headers.items()}["allow"]


def test_a_body_over_the_limit_is_413(split):
    status, answer = split.post(TEXT, b'{"prompt":"' + b"a" * (9 << 20) + b'"}')
    expect_error(status, answer, 413, "")


@pytest.mark.parametrize(
    "raw",
    [b"\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 40,
     b"POST " + TEXT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
     b"POST " + TEXT.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
     b"GET /health HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n\r\n"],
    ids=range(7),
)  # fmt: skip
def test_bytes_that_are_no_request_end_in_an_error_or_a_close(raw, split):
    with socket.create_connection(("127.0.0.1", split.port), timeout=10) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while data := sock.recv(4096):
                received += data
        except ConnectionResetError:
            pass
    assert not received or received.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), received
    assert split.get("/health")[0] == 200


def test_a_healthy_stream_runs_on_beside(split):
    alone = split.complete([50, 60, 70], 80)["choices"][0]["token_ids"]
    healthy = Stream(split.port, TEXT, completion([50, 60, 70], 80, stream=True))
    healthy.receive_events(1)
    for path, body, wanted, name in BAD:
        expect_error(*split.post(path, body), wanted, name)
    while b"[DONE]" not in healthy.received:
        assert healthy.receive()
    lines = [line for line in healthy.received.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in json.loads(line[6:])["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids") or []] == alone
    healthy.leave("fin")
