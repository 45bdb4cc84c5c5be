#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""OpenAI's own client, httpx, curl and schemathesis against mimeo-http: for developers, who have them from PyPI.

	python3 -m venv venv; venv/bin/pip install openai httpx schemathesis
	MIMEO_BUILD=build-test venv/bin/python tests/http/real_clients.py [--model FOLDER] [--only TEXT]

The model is tinycalc, or that of a Hugging Face folder, which must be one that chats. Speaks TAP.
"""
import argparse
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile

import httpx
import openai

import rig

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
COUNT = [{"role": "user", "content": "count 97 3"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


REQUESTS = ("CompletionRequest", "ChatRequest", "EmbeddingRequest", "TokenizeRequest", "DetokenizeRequest")


class Clients:
    def __init__(self, own, name):
        self.rig, self.name, self.tiny = own, name, name == "tinycalc"
        self.messages = COUNT if self.tiny else QUESTION
        self.url = f"http://127.0.0.1:{own.server.port}"
        self.openai = openai.OpenAI(base_url=self.url + "/v1", api_key=rig.KEY, max_retries=0)
        self.transport = httpx.HTTPTransport(uds=str(own.server.path))
        self.unix = openai.OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0,
                                  http_client=httpx.Client(transport=self.transport))

    def expect(self, text):
        assert text.strip() == ("97 98 99" if self.tiny else "The capital of France is Paris."), text

    # ---- openai ----

    def test_openai_lists_models(self):
        assert [model.id for model in self.openai.models.list()] == [self.name]
        assert self.openai.models.retrieve(self.name).id == self.name

    def test_openai_chats_over_tcp_and_a_unix_socket(self):
        for client in (self.openai, self.unix):
            reply = client.chat.completions.create(model=self.name, messages=self.messages, temperature=0)
            self.expect(reply.choices[0].message.content)
            assert reply.choices[0].finish_reason == "stop" and reply.usage.total_tokens > 10

    def test_openai_reads_a_stream(self):
        text, usage = "", None
        for chunk in self.openai.chat.completions.create(model=self.name, messages=self.messages, temperature=0,
                                                         stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        self.expect(text)
        assert usage.completion_tokens > 5

    def test_openai_helper_of_streams(self):
        with self.openai.chat.completions.stream(model=self.name, messages=self.messages, temperature=0) as stream:
            kinds = {event.type for event in stream}
        assert "content.delta" in kinds and "content.done" in kinds
        self.expect(stream.get_final_completion().choices[0].message.content)

    def test_openai_async_requests_run_side_by_side(self):
        async def ask():
            client = openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=rig.KEY, max_retries=0)
            replies = await asyncio.gather(*(client.chat.completions.create(
                model=self.name, messages=self.messages, temperature=0) for _ in range(8)))
            return [reply.choices[0].message.content for reply in replies]
        for text in asyncio.run(ask()):
            self.expect(text)

    def test_openai_reads_logprobs(self):
        reply = self.openai.chat.completions.create(model=self.name, messages=self.messages, temperature=0,
                                                    logprobs=True, top_logprobs=5)
        content = reply.choices[0].logprobs.content
        self.expect("".join(entry.token for entry in content))
        assert all(len(entry.top_logprobs) == 5 for entry in content)
        assert all(entry.top_logprobs[0].token == entry.token for entry in content)

    def test_openai_gives_tools_and_reads_calls(self):
        reply = self.openai.chat.completions.create(
            model=self.name, messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[WEATHER], tool_choice="auto", temperature=0, max_tokens=64)
        message = reply.choices[0].message
        print(f"# with tools: {reply.choices[0].finish_reason}, {message.content!r}, {message.tool_calls}")
        assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls")
        assert bool(message.tool_calls) == (reply.choices[0].finish_reason == "tool_calls")
        history = [{"role": "user", "content": "What is the weather in Paris?"},
                   {"role": "assistant", "content": None, "tool_calls": [{
                       "id": "call_1", "type": "function",
                       "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
                   {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"}]
        reply = self.openai.chat.completions.create(model=self.name, messages=history, tools=[WEATHER], max_tokens=16)
        assert reply.choices[0].message.role == "assistant"

    def test_openai_completes(self):
        reply = self.openai.completions.create(model=self.name, prompt="count 97 3\n", max_tokens=12, temperature=0,
                                               n=2, logprobs=1, stop=["\n\n"])
        assert len(reply.choices) == 2 and reply.choices[0].text == reply.choices[1].text

    def test_openai_embeds(self):
        # The client asks for base64 unless it is told otherwise.
        one = self.openai.embeddings.create(model=self.name, input=["the cat sat", "a dog stood"])
        two = self.openai.embeddings.create(model=self.name, input="the cat sat", encoding_format="float")
        assert len(one.data) == 2 and abs(sum(x * x for x in one.data[0].embedding) - 1) < 1e-4
        assert all(abs(a - b) < 1e-6 for a, b in zip(one.data[0].embedding, two.data[0].embedding))

    def test_openai_raises_its_own_errors(self):
        def raised(kind, **fields):
            try:
                self.openai.chat.completions.create(**{"model": self.name, "messages": COUNT, **fields})
            except kind as error:
                return error
            raise AssertionError(f"no {kind.__name__}")
        assert raised(openai.NotFoundError, model="gpt-4").code == "model_not_found"
        assert raised(openai.BadRequestError, temperature=9).param == "temperature"
        assert raised(openai.BadRequestError, max_tokens=1 << 30).code == "context_length_exceeded"
        assert raised(openai.BadRequestError, response_format={"type": "json_object"}).param == "response_format"
        stranger = openai.OpenAI(base_url=self.url + "/v1", api_key="sk-wrong-0123456789", max_retries=0)
        try:
            stranger.models.list()
            raise AssertionError("no AuthenticationError")
        except openai.AuthenticationError as error:
            assert error.code == "invalid_api_key"

    # ---- httpx, curl ----

    def test_httpx_keeps_its_connections(self):
        with httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {rig.KEY}"}) as client:
            before = client.get("/metrics").text
            for _ in range(20):
                assert client.get("/v1/models").status_code == 200
            after = client.get("/metrics").text
        assert rig.metric_of(after, "mimeo_http_connections_total") == rig.metric_of(
            before, "mimeo_http_connections_total")

    def test_httpx_cancels_a_stream_that_it_leaves(self):
        before = self.rig.server.metric("mimeo_http_cancelled_total")
        with httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {rig.KEY}"}) as client:
            with client.stream("POST", "/v1/completions", json={
                    "prompt": "count 97 3\n", "ignore_eos": True, "max_tokens": 1500, "stream": True}) as reply:
                next(reply.iter_lines())
        self.rig.server.await_metric("mimeo_http_cancelled_total", before + 1)
        self.rig.server.await_metric("mimeo_http_requests_in_flight", 0)

    def test_curl_speaks_to_the_unix_socket(self):
        curl = ["curl", "-sS", "--fail-with-body", "--unix-socket", str(self.rig.server.path)]
        body = json.dumps({"messages": self.messages, "temperature": 0})
        done = subprocess.run([*curl, "http://localhost/v1/chat/completions", "-d", body], capture_output=True, text=True,
                              check=True)
        self.expect(json.loads(done.stdout)["choices"][0]["message"]["content"])
        body = json.dumps({"messages": self.messages, "temperature": 0, "stream": True})
        done = subprocess.run([*curl, "-N", "http://localhost/v1/chat/completions", "-d", body], capture_output=True,
                              text=True, check=True)
        assert done.stdout.endswith("data: [DONE]\n\n")

    # ---- schemathesis ----

    def schemathesis(self, schema, mode):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "openapi.json"
            path.write_text(json.dumps(schema))
            done = subprocess.run(
                [str(pathlib.Path(sys.executable).parent / "schemathesis"), "run", str(path), "--url", self.url,
                 "--header", f"Authorization: Bearer {rig.KEY}", "--phases", "examples,coverage,fuzzing",
                 "--mode", mode, "--max-examples", "100", "--generation-deterministic", "--suppress-health-check",
                 "all", "--request-timeout", "60", "--checks", "all"],
                capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
        print("".join(f"# {line}\n" for line in done.stdout.splitlines()[-12:]), end="")

    def test_schemathesis_finds_no_valid_request_that_is_refused(self):
        schema = json.loads((rig.SOURCE / "examples" / "openapi.json").read_text())
        hidden = len(self.openai.embeddings.create(model=self.name, input="x").data[0].embedding)
        narrow(schema, self.name, hidden, self.rig.server.get("/v1/models").json()["data"][0]["max_model_len"])
        self.schemathesis(schema, "positive")

    def test_schemathesis_finds_no_invalid_request_that_is_accepted(self):
        self.schemathesis(json.loads((rig.SOURCE / "examples" / "openapi.json").read_text()), "negative")


def narrow(schema, name, hidden, max_len):
    """What depends on the model or on other fields, and limits that keep the run short."""
    schemas = schema["components"]["schemas"]
    for request in REQUESTS:
        schemas[request]["properties"]["model"] = {"enum": [name, None]}
    limits = {"type": ["integer", "null"], "minimum": 1, "maximum": 4}
    for request in ("CompletionRequest", "ChatRequest"):
        fields = schemas[request]["properties"]
        fields["n"] = {"type": ["integer", "null"], "minimum": 1, "maximum": 2}
        # These are valid together with others only.
        for field in ("stream_options", "best_of", "top_logprobs", "tools", "min_tokens"):
            fields.pop(field, None)
        for field in ("max_tokens", "max_completion_tokens"):
            if field in fields:
                fields[field] = limits
    for prompt in schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]:
        if prompt["type"] == "array" and prompt["items"]["type"] != "integer":
            prompt["maxItems"] = 64
    # Without a limit an answer may be as long as the sequence.
    schemas["ChatRequest"]["required"].append("max_completion_tokens")
    schemas["ChatRequest"]["properties"]["max_completion_tokens"] = {"type": "integer", "minimum": 1, "maximum": 4}
    schemas["Message"]["properties"].pop("tool_calls")
    schemas["Message"]["properties"]["role"] = {"enum": ["system", "user", "assistant"]}
    schemas["EmbeddingRequest"]["properties"]["dimensions"] = {"enum": [hidden, None]}

    def adapt(value):
        if isinstance(value, dict):
            # jansson takes no name with a zero byte in it, which is valid JSON.
            if isinstance(value.get("properties"), dict) and "type" in value:
                value["propertyNames"] = {"pattern": "^[^\\u0000]*$"}
                value["additionalProperties"] = {"type": ["string", "number", "boolean", "null"]}
            if value.get("type") == ["object", "null"] and "properties" not in value:
                value.setdefault("additionalProperties", {"type": ["string", "number", "boolean", "null"]})
                value.setdefault("propertyNames", {"pattern": "^[^\\u0000]*$"})
            if value.get("maximum") == 2147483647 and value.get("minimum") == 0:
                value["maximum"] = 255
            if value.get("pattern") == "^(0|[1-9][0-9]{0,8})$":
                value["pattern"] = "^(0|[1-9][0-9]?)$"
            if value.get("maxItems") == 1000000:
                value["maxItems"] = max_len // 4
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            adapt(child)
    for request in (*REQUESTS, "Message"):
        adapt(schemas[request])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    tests = [name for name in vars(Clients) if name.startswith("test_") and arguments.only in name]
    failed = 0
    print(f"1..{len(tests)}")
    with rig.Rig(["--max-choices", "128"], ["--kv-pages", "2048"], model=arguments.model) as own:
        clients = Clients(own, own.daemon.model.name)
        for number, name in enumerate(tests, 1):
            try:
                getattr(clients, name)()
                print(f"ok {number} - {name}", flush=True)
            except Exception as error:
                failed += 1
                print(f"not ok {number} - {name}")
                print("".join(f"# {line}\n" for line in f"{type(error).__name__}: {error}".splitlines()), end="",
                      flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
