"""The raw shape of answers: what strict parsers take and byte-counting proxies see."""

import http.client
import json
import socket

import pytest
from fleet import completion, events_of

MESSAGES = [{"role": "user", "content": "Write three words about 日本 and an emoji."}]


def chat(**fields) -> dict:
    return {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, **fields}


def stream(fleet, path: str, body: dict) -> tuple[dict, str]:
    status, headers, text = fleet.request("POST", path, {**body, "stream": True})
    assert status == 200, text
    return {name.lower(): value for name, value in headers.items()}, text


def test_lines_and_headers(split):
    headers, text = stream(split, "/v1/chat/completions", chat())
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-request-id"]
    for block in text.split("\n\n")[:-1]:
        lines = block.split("\n")
        assert all(line.startswith(("data: ", ": ")) for line in lines), block
        assert sum(line.startswith("data: ") for line in lines) == 1
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("choices", [1, 3])
def test_chat_chunks(split, choices):
    _, text = stream(
        split, "/v1/chat/completions",
        chat(n=choices, seed=5, temperature=1, stream_options={"include_usage": True}),
    )  # fmt: skip
    *chunks, last = events_of(text)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks)
    for key in ("id", "created", "model", "object"):
        assert len({chunk[key] for chunk in [*chunks, last]}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    for index in range(choices):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in mine[1:])
        assert [bool(choice["finish_reason"]) for choice in mine] == [
            *[False] * (len(mine) - 1),
            True,
        ]
        assert all(choice["finish_reason"] is None for choice in mine[:-1])
        assert mine[-1]["delta"] == {}
        assert all(choice["delta"]["content"] for choice in mine[1:-1])


def test_no_usage_unless_asked(split):
    _, text = stream(split, "/v1/chat/completions", chat())
    assert all(event["choices"] and not event.get("usage") for event in events_of(text))


def test_completion_chunks_carry_ids_once(split):
    _, text = stream(split, "/v1/completions", completion("Hello", 6))
    events = list(events_of(text))
    assert events[0]["object"] == "text_completion"
    choices = [event["choices"][0] for event in events]
    assert len([t for choice in choices for t in choice.get("token_ids") or []]) == 6
    carried = [
        ids
        for event in events
        for ids in (event.get("prompt_token_ids"), event["choices"][0].get("prompt_token_ids"))
        if ids
    ]
    assert len(carried) == 1


def test_pieces_are_whole_characters_and_add_up(split):
    # High temperature: bytes that make no character come too.
    fields = dict(temperature=2, seed=11, max_tokens=80, ignore_eos=True)
    _, text = stream(split, "/v1/chat/completions", chat(**fields))
    pieces = [c["delta"].get("content") or "" for e in events_of(text) for c in e["choices"]]
    _, whole = split.post("/v1/chat/completions", chat(**fields))
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert "".join(pieces).encode("utf-8")


def test_a_stop_string_is_cut_in_streams_too(split):
    body = completion("1, 2, 3, 4,", 40, stop=["9,"])
    _, whole = split.post("/v1/completions", body)
    _, text = stream(split, "/v1/completions", body)
    events = list(events_of(text))
    assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
    assert "9," not in whole["choices"][0]["text"]
    assert (
        events[-1]["choices"][0]["finish_reason"] == "stop" == whole["choices"][0]["finish_reason"]
    )


def test_one_connection_serves_many_requests(split):
    """Keep-alive: whole, streamed, wrong and chunked requests in turn, each with its own answer."""
    connection = http.client.HTTPConnection("127.0.0.1", split.port, timeout=30)
    json_type = {"Content-Type": "application/json"}
    for turn in range(12):
        prompt = [100 + turn]
        body = completion(prompt, 2, stream=turn % 3 == 1)
        if turn % 3 == 2:
            connection.request("POST", "/v1/completions", b"{broken", json_type)
            response = connection.getresponse()
            assert response.status == 400 and json.loads(response.read())["error"]
            continue
        data = json.dumps(body).encode()
        chunked = iter([data[:10], data[10:]]) if turn % 2 else data
        connection.request(
            "POST", "/v1/completions", chunked, json_type, encode_chunked=turn % 2 == 1
        )
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        ids = [t for e in events_of(text) for c in e["choices"] for t in c.get("token_ids") or []] \
            if turn % 3 == 1 else json.loads(text)["choices"][0]["token_ids"]  # fmt: skip
        assert ids == split.complete(prompt, 2)["choices"][0]["token_ids"]
    connection.close()


def test_expect_continue_is_answered(split):
    body = json.dumps(completion("Hello", 1)).encode()
    with socket.create_connection(("127.0.0.1", split.port), timeout=30) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert sock.recv(1024).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        assert sock.recv(1024).startswith(b"HTTP/1.1 200")
