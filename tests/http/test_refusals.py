#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Requests that are wrong, and what they are told."""
import json
import re
import sys

import rig
from wire import assert_lives, server, talk


# ---- wrong requests ----

def test_bytes_that_are_no_http_are_refused():
    for data in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        reply = talk(data, shut=True)
        assert not reply.startswith(b"HTTP/1.1 2"), reply
    assert_lives()


def test_path_that_is_not_there_is_an_error_in_json():
    for method in ("GET", "POST", "DELETE"):
        reply = server().request(method, "/v1/nothing", "{}" if method == "POST" else None)
        assert reply.status == 404 and reply.error()["type"] == "invalid_request_error"


def test_wrong_method_is_refused_with_the_right_one():
    reply = server().get("/v1/completions")
    assert reply.status == 405 and reply.headers["Allow"] == "POST"
    assert server().post("/v1/models", {}).headers["Allow"] == "GET"
    assert server().request("HEAD", "/health").status == 200


def test_body_that_is_no_json_is_refused_with_its_place():
    reply = server().post("/v1/completions", '{"prompt": \n "a",, }')
    assert reply.status == 400 and "line 2" in reply.error()["message"]
    for body in ("", "[]", "1", '"x"', "{", "\xff", '{"a":1,"a":2}', "[" * 100000):
        assert server().post("/v1/completions", body.encode("latin-1")).status == 400, body[:10]


def test_wrong_types_and_ranges_are_refused_by_field():
    cases = {
        "model": 1, "prompt": {}, "temperature": "hot", "top_p": 2, "n": 0, "max_tokens": -1, "stream": "yes",
        "stop": [1], "seed": 1.5, "logprobs": 99, "presence_penalty": 3, "frequency_penalty": -3,
        "logit_bias": {"x": 1}, "stream_options": {"include_usage": True}, "min_p": -0.1, "min_tokens": -1,
    }
    for name, value in cases.items():
        reply = server().complete(**{name: value})
        assert reply.status == 400 and reply.error()["param"] == name, (name, reply.body)
    for prompt in ([1, 256], [1, -1], [1, "a"], ["a", 1], [], "x" * 5000, None, [[]]):
        assert server().complete(prompt).status == 400, prompt
    for bias in ({"256": 1}, {"1": 101}, {"1": "x"}, {"-1": 1}, {"1": 1, "01": 1}, [1]):
        reply = server().complete(logit_bias=bias)
        assert reply.status == 400 and reply.error()["param"] == "logit_bias", bias


def test_wrong_chats_are_refused_by_field():
    for messages, field in (
            (None, "messages"), ([], "messages"), ("x", "messages"), ([1], "messages[0]"),
            ([{"content": "x"}], "messages[0]"), ([{"role": "user", "content": 1}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
            ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls")):
        reply = server().chat(messages=messages)
        assert reply.status == 400 and reply.error()["param"] == field, (messages, reply.body)
    for name in ("tools", "top_logprobs", "functions", "modalities", "guided_json"):
        reply = server().chat(**{name: {"x": 1} if name != "top_logprobs" else 5})
        assert reply.status == 400 and reply.error()["param"] == name, (name, reply.body)


def test_unknown_model_is_not_found():
    reply = server().complete(model="gpt-4")
    assert reply.status == 404 and reply.error()["code"] == "model_not_found"
    assert "gpt-4" in reply.error()["message"]


def test_errors_that_quote_part_of_a_character_are_json():
    long = "x" + "\u00e9" * 50
    for field, value in (("model", long), ("logit_bias", {long: 1}), ("response_format", {"type": long})):
        reply = server().complete(**{field: value})
        assert reply.status in (400, 404) and "x\u00e9" in reply.error()["message"], (field, reply.body)
    for path in ("/v1/models/%ff", "/v1/models/x" + "%c3%a9" * 50, "/%ff", "/" + "%c3%a9" * 60):
        reply = server().get(path)
        assert reply.status == 404 and "?" in reply.error()["message"], (path, reply.body)


def test_more_tokens_than_the_model_holds_are_refused_with_the_numbers():
    reply = server().complete(max_tokens=2040)
    assert reply.status == 400 and reply.error()["code"] == "context_length_exceeded"
    assert "2048" in reply.error()["message"] and "12 tokens" in reply.error()["message"]
    assert server().post("/v1/embeddings", {"input": "x" * 2048}).status == 400


def test_request_without_a_limit_gets_what_the_sequence_holds():
    assert server().post("/v1/completions", {"prompt": "x" * 2040}).json()["usage"]["total_tokens"] <= 2048
    with rig.Rig(["--max-tokens", "2048"]) as own:
        assert own.server.chat().json()["choices"][0]["message"]["content"] == "97 98 99"
        assert own.server.chat(max_tokens=2048).status == 400


def test_what_never_fits_into_the_arena_is_not_asked_for_again():
    with rig.Rig(["--arena-bytes", "64K"]) as own:
        assert own.server.complete(max_tokens=1500).status == 200
        for fields in ({"logprobs": 20}, {"n": 16}):
            reply = own.server.complete(max_tokens=1500, **fields)
            assert reply.status == 400 and "arena" in reply.error()["message"], reply.body
            assert not reply.headers["Retry-After"]


def test_more_choices_than_allowed_are_refused():
    for n in (17, 1000):
        reply = server().complete(n=n)
        assert reply.status == 400 and "16" in reply.error()["message"], reply.body
    assert server().complete(["a"] * 9, n=2).status == 400
    assert server().complete(["a"] * 17).status == 400


def test_schema_lists_every_status_of_the_page():
    page = (rig.SOURCE / "man" / "mimeo-http.8.scd").read_text()
    errors = set(re.findall(r"^\|  (\d+)$", page, re.MULTILINE))
    paths = json.loads((rig.SOURCE / "examples" / "openapi.json").read_text())["paths"]
    listed = {status for path in paths.values() for call in path.values() for status in call["responses"]}
    assert errors and errors - listed == {"405"}, (errors, listed)  # no listed method is refused
    for name, path in paths.items():
        for call in path.values():
            assert ("501" in call["responses"]) == ("requestBody" in call), name


if __name__ == "__main__":
    rig.run(sys.modules[__name__])
