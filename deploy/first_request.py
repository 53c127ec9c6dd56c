"""Asks the server on 127.0.0.1:PORT one question, shows the answer as it comes, what it took, and
how to ask again. Standard library only."""

import http.client
import json
import sys
import time

QUESTION = "What is the capital of France? Answer in one sentence."


def ask(port: int) -> tuple[list[float], dict]:
    """Streams one answer to standard output; returns the moments of its chunks, counted in seconds
    from the request, and the usage that the server reports."""
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    start = time.monotonic()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read().decode()}")
    moments, usage = [], {}
    for line in response:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        usage = event.get("usage") or usage
        text = "".join(c["delta"].get("content") or "" for c in event["choices"])
        if text:
            moments.append(time.monotonic() - start)
            print(text, end="", flush=True)
    print()
    return moments, usage


def main() -> int:
    port = int(sys.argv[1])
    print(f"\n> {QUESTION}\n< ", end="", flush=True)
    try:
        moments, usage = ask(port)
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
        print(f"\nfirst_request.py: {error}", file=sys.stderr)
        return 1
    if not moments:
        print("first_request.py: the answer is empty", file=sys.stderr)
        return 1
    tokens = usage.get("completion_tokens", len(moments))
    spent = moments[-1] - moments[0]
    rate = f"{(tokens - 1) / spent:.0f} tokens/s" if tokens > 1 and spent > 0 else "one token"
    print(
        f"\nfirst token after {moments[0] * 1000:.0f} ms "
        f"({usage.get('prompt_tokens', '?')} prompt tokens), then {rate}; "
        f"{tokens} tokens in {moments[-1] * 1000:.0f} ms in all"
    )
    body = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64})
    print("\nAsk again:")
    print(
        f"  curl http://127.0.0.1:{port}/v1/chat/completions "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
