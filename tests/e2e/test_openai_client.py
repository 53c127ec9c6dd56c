"""OpenAI's own client against the three processes."""

import openai
import pytest

# Without its second sentence the model wavers between two answers, and rounding decides.
QUESTION = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]


@pytest.fixture(scope="module")
def client(split):
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{split.port}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture(scope="module")
def model(client) -> str:
    (model,) = client.models.list().data
    return model.id


def test_chat(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_completion_tokens=32
    )
    (choice,) = answer.choices
    assert "Paris" in choice.message.content
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.model == model
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat(client, model):
    whole = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=32
    )
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=32, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "stop" and not any(reasons[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


def test_chat_with_choices_and_stop(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=1, seed=7, n=3, max_tokens=16, stop=["."]
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert all("." not in choice.message.content for choice in answer.choices)


def test_completions(client, model):
    answer = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=8
    )
    assert answer.object == "text_completion"
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8


def test_streamed_completions(client, model):
    fields = dict(model=model, prompt="One, two, three,", temperature=0, max_tokens=12)
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text


def test_token_ids_as_a_prompt(client, model):
    extra = {"return_token_ids": True}
    text = client.completions.create(
        model=model, prompt="Once upon a time", temperature=0, max_tokens=8, extra_body=extra
    )
    ids = (
        text.choices[0].model_extra.get("prompt_token_ids") or text.model_extra["prompt_token_ids"]
    )
    again = client.completions.create(
        model=model, prompt=ids, temperature=0, max_tokens=8, extra_body=extra
    )
    assert again.choices[0].text == text.choices[0].text


def test_retrieves_the_model(client, model):
    assert client.models.retrieve(model).id == model


def test_errors_are_the_clients_own(client, model):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="word " * 20000, max_tokens=1)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=9)
    assert wrong.value.param == "temperature"
