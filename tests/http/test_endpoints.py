#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the endpoints answer."""
import base64
import math
import struct
import sys

import rig


def server():
    return rig.shared.server


def choice(reply, index=0):
    assert reply.status == 200, (reply.status, reply.body)
    return reply.json()["choices"][index]


# ---- completions ----

def test_completion_is_the_models_answer():
    reply = server().complete("count 97 12\n", model="tinycalc")
    assert choice(reply)["text"] == "97 98 99 100 101 102 103 104 105 106 107 108"
    assert choice(reply)["finish_reason"] == "stop"
    assert reply.json()["object"] == "text_completion" and reply.json()["model"] == "tinycalc"
    assert reply.headers["Content-Type"] == "application/json"


def test_usage_counts_the_prompt_with_its_begin_token_and_the_output_with_its_end_token():
    usage = server().complete().json()["usage"]
    assert usage["prompt_tokens"] == 12 and usage["completion_tokens"] == 9 and usage["total_tokens"] == 21


def test_prompt_of_token_ids_is_taken_as_it_is():
    assert choice(server().complete([1, *b"count 97 3\n"]))["text"] == "97 98 99"


def test_each_of_several_prompts_has_n_choices():
    reply = server().complete(["count 97 3\n", [1, *b"count 98 3\n"]] [:1] + ["count 98 3\n"], n=2)
    choices = sorted(reply.json()["choices"], key=lambda c: c["index"])
    assert [c["text"] for c in choices] == ["97 98 99", "97 98 99", "98 99 100", "98 99 100"]
    assert reply.json()["usage"]["prompt_tokens"] == 24


def test_length_limit_ends_an_answer():
    reply = choice(server().complete(max_tokens=4))
    assert reply["text"] == "97 9" and reply["finish_reason"] == "length"


def test_completion_has_16_tokens_unless_it_says_otherwise():
    reply = server().post("/v1/completions", {"prompt": "count 97 12\n", "temperature": 0})
    assert reply.json()["usage"]["completion_tokens"] == 16


def test_stop_string_ends_the_text_before_it():
    for stop in ("99 1", ["zzz", "99 1"]):
        reply = choice(server().complete("count 97 12\n", stop=stop))
        assert reply["text"] == "97 98 " and reply["finish_reason"] == "stop", reply


def test_stop_string_of_the_last_token_is_a_stop():
    for fields in ({}, {"stream": True}):
        reply = server().complete("count 97 12\n", stop="97", max_tokens=2, **fields)
        last = reply.events()[-1] if fields else reply.json()
        assert last["choices"][0]["finish_reason"] == "stop", last


def test_request_that_was_stopped_leaves_the_daemon():
    before = server().metric("mimeo_http_completion_tokens_total")
    server().complete(stop="97", ignore_eos=True, max_tokens=2000)
    server().await_metric("mimeo_http_requests_in_flight", 0)
    assert server().metric("mimeo_http_completion_tokens_total") < before + 1000


def test_same_seed_gives_the_same_answer():
    fields = {"temperature": 2, "max_tokens": 40, "seed": 7, "ignore_eos": True}
    one, two = (choice(server().complete(**fields))["text"] for _ in range(2))
    assert one == two
    assert choice(server().complete(**{**fields, "seed": 8}))["text"] != one


def test_choices_of_one_seed_differ():
    reply = server().complete(temperature=2, max_tokens=40, seed=7, ignore_eos=True, n=2)
    assert choice(reply, 0)["text"] != choice(reply, 1)["text"]


def test_logit_bias_changes_the_answer():
    reply = choice(server().complete(logit_bias={str(ord("8")): 100, str(ord("9")): -100}, max_tokens=3))
    assert reply["text"] == "888"


def test_penalty_changes_the_answer():
    plain = choice(server().complete("count 97 12\n", max_tokens=40))["text"]
    assert choice(server().complete("count 97 12\n", max_tokens=40, repetition_penalty=50))["text"] != plain


def test_logprobs_are_in_the_form_of_completions():
    logprobs = choice(server().complete(logprobs=2))["logprobs"]
    assert logprobs["tokens"] == list("97 98 99")
    assert all(-1 < value <= 0 for value in logprobs["token_logprobs"])
    assert logprobs["text_offset"] == list(range(8))
    assert all(len(top) == 2 and token in top
               for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"]))


def test_part_of_a_character_has_no_bytes_in_logprobs():
    reply = server().chat(logprobs=True, max_tokens=1, logit_bias={"195": 100}).json()
    [entry] = reply["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "\ufffd" and entry["bytes"] is None, entry


def test_unknown_fields_are_ignored():
    assert choice(server().complete(user="somebody", made_up={"a": [1]}))["text"] == "97 98 99"


def test_known_fields_without_support_are_refused_by_name():
    for name, value in (("echo", True), ("suffix", "x"), ("best_of", 3)):
        error = server().complete(**{name: value})
        assert error.status == 400 and error.error()["param"] == name, error.body
        assert error.error()["code"] == "unsupported"
    assert server().complete(echo=False, suffix=None, best_of=1).status == 200


# ---- streams ----

def test_stream_of_a_completion_adds_up_to_the_answer():
    reply = server().complete("count 97 12\n", stream=True, stream_options={"include_usage": True})
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    *chunks, last = reply.events()
    assert "".join(c["choices"][0]["text"] for c in chunks) == "97 98 99 100 101 102 103 104 105 106 107 108"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len(chunks) > 5 and all(c["usage"] is None for c in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 45


def test_stream_holds_back_what_may_be_a_stop_string():
    chunks = server().complete("count 97 12\n", stream=True, stop="99 1").events()
    assert "".join(c["choices"][0]["text"] for c in chunks) == "97 98 "


def test_choices_of_a_stream_are_told_apart_by_their_index():
    texts = ["", "", "", ""]
    for chunk in server().complete(["count 97 3\n", "count 98 3\n"], n=2, stream=True).events():
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["97 98 99", "97 98 99", "98 99 100", "98 99 100"]


def test_refusal_of_a_stream_is_a_plain_error():
    reply = server().complete("x" * 3000, stream=True)
    assert reply.status == 400 and reply.error()["code"] == "context_length_exceeded"


# ---- chats ----

def test_chat_is_answered_by_an_assistant():
    reply = server().chat()
    assert choice(reply)["message"]["role"] == "assistant"
    assert choice(reply)["message"]["content"] == "97 98 99"
    assert choice(reply)["finish_reason"] == "stop" and reply.json()["object"] == "chat.completion"


def test_parts_of_a_content_are_joined():
    parts = [{"type": "text", "text": "count 97"}, {"type": "text", "text": " 3"}]
    assert choice(server().chat(parts))["message"]["content"] == "97 98 99"


def test_parts_that_are_no_text_are_refused_by_type():
    reply = server().chat([{"type": "image_url", "image_url": {"url": "data:"}}])
    assert reply.status == 400 and "image_url" in reply.error()["message"]
    assert reply.error()["param"] == "messages[0].content"


def test_developer_is_a_system_role():
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]
    tokens = server().post("/tokenize", {"messages": messages}).json()["tokens"]
    assert bytes(tokens[1:]) == b"x\ny\n"


def test_error_that_the_template_raises_is_the_clients():
    reply = server().post("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]})
    assert reply.status == 400 and "unknown role king" in reply.error()["message"]


def test_stream_of_a_chat_begins_with_the_role():
    first, *chunks = server().chat(stream=True).events()
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "97 98 99"
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


def test_logprobs_are_in_the_form_of_chats():
    content = choice(server().chat(logprobs=True, top_logprobs=3))["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list("97 98 99")
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True) and abs(values[0] - entry["logprob"]) < 1e-6


def test_logprobs_of_a_stream_are_those_of_the_whole_answer():
    whole = choice(server().chat(logprobs=True))["logprobs"]["content"]
    parts = []
    for chunk in server().chat(logprobs=True, stream=True).events():
        parts += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    assert [p["token"] for p in parts] == [w["token"] for w in whole]


def test_max_completion_tokens_is_the_limit_of_a_chat():
    assert choice(server().chat(max_completion_tokens=2))["message"]["content"] == "97"
    assert choice(server().chat(max_tokens=2))["finish_reason"] == "length"


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def rendered(**fields):
    tokens = server().post("/tokenize", {"messages": [{"role": "user", "content": "x"}], **fields}).json()
    return bytes(tokens["tokens"][1:]).decode()


def test_tools_are_given_to_the_template():
    assert rendered(tools=[TOOL]).startswith('tools [{"type": "function"')
    assert not rendered().startswith("tools")


def test_arguments_of_earlier_calls_are_given_as_objects():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": [1]}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "2"}]
    assert rendered(messages=messages) == 'call add {"a": [1]}\n2\n'


def test_tool_choice_none_hides_the_tools():
    with_tools = server().chat(tools=[TOOL]).json()["usage"]["prompt_tokens"]
    assert server().chat(tools=[TOOL], tool_choice="none").json()["usage"]["prompt_tokens"] < with_tools


def test_call_cannot_be_forced():
    for forced in ("required", {"type": "function", "function": {"name": "add"}}):
        reply = server().chat(tools=[TOOL], tool_choice=forced)
        assert reply.status == 400 and reply.error()["param"] == "tool_choice"


def test_formats_other_than_text_are_refused_by_name():
    reply = server().chat(response_format={"type": "json_object"})
    assert reply.status == 400 and reply.error()["param"] == "response_format"
    assert "json_object" in reply.error()["message"]
    assert server().chat(response_format={"type": "text"}).status == 200


# ---- embeddings ----

def embedding(text, target=None, **fields):
    reply = (target or server()).post("/v1/embeddings", {"input": text, **fields})
    assert reply.status == 200, reply.body
    return [item["embedding"] for item in reply.json()["data"]]


def test_embedding_has_length_1_and_depends_on_its_input_alone():
    one, two, again = embedding(["hello", "another", "hello"])
    assert abs(sum(x * x for x in one) - 1) < 1e-5
    assert one == again and one != two and len(one) == 160
    assert embedding([1, *b"hello"]) == [one]


def test_embeddings_are_in_the_order_of_their_inputs():
    texts = [f"{i} " * (1 + i * 7 % 40) for i in range(40)]
    reply = server().post("/v1/embeddings", {"input": texts}).json()
    assert reply["object"] == "list" and reply["model"] == "tinycalc"
    assert [item["index"] for item in reply["data"]] == list(range(40))
    for i in (0, 1, 17, 39):
        [alone] = embedding(texts[i])
        assert all(abs(a - b) < 1e-6 for a, b in zip(alone, reply["data"][i]["embedding"], strict=True))


def test_embedding_in_base64_has_the_same_numbers():
    [numbers], [text] = embedding("hello"), embedding("hello", encoding_format="base64")
    decoded = struct.unpack(f"<{len(numbers)}f", base64.b64decode(text))
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(numbers, decoded))


def test_embedding_of_a_long_input_is_that_of_the_whole():
    text = "The quick brown fox jumps over the lazy dog. " * 8
    with rig.Rig(daemon_options=["--max-batch-tokens", "64"]) as small:
        [parts], [whole] = embedding(text, small.server), embedding(text)
    assert all(abs(a - b) < 1e-5 for a, b in zip(parts, whole))


def test_usage_of_embeddings_counts_all_inputs():
    usage = server().post("/v1/embeddings", {"input": ["ab", "cde"]}).json()["usage"]
    assert usage == {"prompt_tokens": 7, "total_tokens": 7}


# ---- the others ----

def test_tokens_of_a_text_come_back_as_the_text():
    for text in ("count 97", "h\u00e9llo \U0001f600", ""):
        reply = server().post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        assert reply["count"] == len(reply["tokens"]) == len(text.encode()) and reply["max_model_len"] == 2048
        assert server().post("/detokenize", {"tokens": reply["tokens"]}).json()["prompt"] == text


def test_special_tokens_are_added_unless_they_are_not_wanted():
    assert server().post("/tokenize", {"prompt": "a"}).json()["tokens"] == [1, 97]
    assert server().post("/tokenize", {"content": "a", "add_special_tokens": False}).json()["tokens"] == [97]


def test_models_are_listed_and_shown_by_name():
    [model] = server().get("/v1/models").json()["data"]
    assert model["id"] == "tinycalc" and model["object"] == "model" and model["max_model_len"] == 2048
    assert server().get("/v1/models/tinycalc").json() == model
    reply = server().get("/v1/models/gpt-4")
    assert reply.status == 404 and reply.error()["code"] == "model_not_found"


def test_metrics_count_replies_and_tokens():
    before = server().metric("mimeo_http_completion_tokens_total")
    replies = 'mimeo_http_replies_total{endpoint="completions",status="200"}'
    n = server().metric(replies)
    server().complete()
    assert server().metric("mimeo_http_completion_tokens_total") == before + 9
    assert server().metric(replies) == n + 1


if __name__ == "__main__":
    rig.run(sys.modules[__name__])
