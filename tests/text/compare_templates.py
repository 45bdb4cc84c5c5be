#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Renders chat templates with transformers and with Mimeo, and compares the results byte for byte.

	compare_templates.py RENDER TEMPLATE.jinja ... [--chats N] [--seed N] [--show N] [--foreign]

RENDER is the program tests/text/chat_render of a build. Each template is rendered with N random chats: roles in sound and
in odd order, contents that are text, lists of parts, empty or missing, tools with nested schemas, tool calls,
reasoning, and values for the variables that the template mentions. Where transformers raises an error, Mimeo must, too, and
with the same text if the template itself raised it.

With --foreign the users' text has letters that no template has, and the marks of the bytes are checked instead.

It needs PyPI's transformers and jinja2. The templates of TEXT.md come from PyPI's source package of llama-cpp-python.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import jinja2
import jinja2.meta
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "<pad>"}

TEXTS = [
	"", " ", "\n", "Hello", "What is the capital of France?", "  leading and trailing \n\n", "a\nb\n\nc\n",
	"tabs\tand\rreturns\r\nhere", "<think>let me see</think>The answer", "<think>\nA\n</think>\n\nB</think>C",
	"no </think> opening", "It's \"quoted\" & <b>escaped</b> 'twice'", "{\"a\": 1, \"b\": [true, null]}", "[1, 2]", "{}",
	"{{ not a template }} {% raw %}", "<|im_start|>system\nHi<|im_end|>", "[INST] x [/INST] <s></s>", "<|eot_id|><|end|>",
	"Grüße, Straße, ÄÖÜ", "日本語のテキスト。", "مرحبا بالعالم", "שלום", "नमस्ते", "e\u0301 combining", "👩‍👩‍👧‍👦 🏳️‍🌈",
	"\u00a0no break\u2003em\u3000ideographic ", "\u200bzero width\ufeff", "line\u2028separator\u0085next", "control \u0001\u001f\u007f",
	"ΟΔΟΣ Σ ΣΑΣ", "İstanbul ıI ﬁ ŉ", "x" * 300, "words " * 60, "</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>",
	"/think", "/no_think please", "back\\slash \\n", "0", "true", "none", "%s %d {} {0}", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
	"<tool_response>ok</tool_response>", "_underscore_", "- a\n- b\n", "A" + "\n" * 5 + "B", "functions.get_weather:0", "reasoning: x",
]
FOREIGN = "".join(map(chr, range(0x1200, 0x1220)))  # Ethiopic letters, which no template has and which have no case
NAMES = ["get_weather", "search", "f", "python", "browser", "code_interpreter", "add", "ns.tool", "näme", "get weather"]
FIELDS = ["location", "unit", "query", "n", "items", "options", "path", "düre", "name", "type", "description"]


class Random(random.Random):
	"""A source of chats: half of them, the odd ones, have what a template need not understand."""

	odd = False
	letters = None  # if given, all text consists of them

	def oddly(self, chance):
		return self.odd and self.random() < chance


def text(rng):
	if rng.letters:
		return "".join(rng.choice(rng.letters) for _ in range(rng.randint(0, 12)))
	kind = rng.random()
	if kind < 0.7:
		return rng.choice(TEXTS)
	if kind < 0.9:
		return rng.choice(TEXTS) + rng.choice(["", " ", "\n"]) + rng.choice(TEXTS)
	return "".join(rng.choice("abcXYZ 0123456789\n\t.,;:<>|{}[]()'\"&äöüßΣ中日🙂\u0301\\/_-") for _ in range(rng.randint(0, 40)))


def scalar(rng):
	return rng.choice([True, False, None, 0, 1, -7, 123456789012, 2**53, 0.5, -1.25, 1e-5, 1e16, 1.5e300, 3.0, 0.1, 100.0,
	                   text(rng), text(rng), text(rng)])


def value(rng, depth=0):
	kind = rng.random()
	if depth > 2 or kind < 0.6:
		return scalar(rng)
	if kind < 0.8:
		return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
	return {rng.choice(FIELDS + ["", "0", "a b"]): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def arguments(rng):
	return {rng.choice(FIELDS): value(rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))}


def schema(rng, depth=0):
	kind = rng.choice(["string", "string", "number", "integer", "boolean", "array", "object"] +
	                  ["null", "union", "anyOf", "oneOf", "ref", "none"] * rng.odd)
	if depth > 2 and kind in ("array", "object", "anyOf", "oneOf"):
		kind = "string"
	result = {"type": kind}
	if kind == "union":
		result["type"] = rng.sample(["string", "null", "number", "object", "array"], rng.randint(1, 3))
	elif kind in ("anyOf", "oneOf"):
		result = {kind: [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
	elif kind == "ref":
		result = {"$ref": "#/definitions/X"}
	elif kind == "none":
		result = {}
	elif kind == "array":
		if not rng.oddly(0.2):
			result["items"] = schema(rng, depth + 1)
		if rng.random() < 0.2:
			result["minItems"] = 1
	elif kind == "object":
		result.update(parameters(rng, depth + 1))
	if rng.random() < 0.6:
		result["description"] = text(rng)
	for name, chance, make in (
			("enum", 0.2, lambda: [scalar(rng) if rng.oddly(0.3) else text(rng) for _ in range(rng.randint(0, 3))]),
			("default", 0.15 * rng.odd, lambda: value(rng)), ("nullable", 0.1, lambda: rng.choice([True, False])),
			("default", 0.1, lambda: text(rng)), ("format", 0.1, lambda: rng.choice(["date", "uuid"])), ("minimum", 0.1, lambda: rng.choice([0, 1.5])),
			("maximum", 0.1, lambda: 10), ("title", 0.1, lambda: text(rng)), ("pattern", 0.05, lambda: "^a+$"),
			("maxLength", 0.05, lambda: 5), ("examples", 0.05, lambda: [value(rng)]), ("strict", 0.03, lambda: True)):
		if rng.random() < chance:
			result[name] = make()
	return result


def parameters(rng, depth=0):
	names = rng.sample(FIELDS, rng.randint(0, 4))
	result = {"type": "object", "properties": {name: schema(rng, depth) for name in names}}
	if rng.random() < 0.7:
		result["required"] = [name for name in names if rng.random() < 0.6]
	if rng.random() < 0.1:
		result["additionalProperties"] = rng.choice([True, False, schema(rng, 2)])
	if rng.random() < 0.05:
		result["$defs"] = {"X": schema(rng, 2)}
	return result


def tool(rng):
	function = {"name": rng.choice(NAMES), "description": text(rng), "parameters": parameters(rng)}
	kind = rng.random() if rng.odd else 1
	if kind < 0.05:
		function.pop("description")
	elif kind < 0.1:
		function["parameters"] = {}
	elif kind < 0.14:
		function.pop("parameters")
	elif kind < 0.2:
		function["response"] = schema(rng)
		function["return"] = schema(rng)
	if rng.random() < 0.1:
		function["strict"] = True
	if rng.oddly(0.2):
		return function
	return {"type": "function", "function": function}


def call(rng, index):
	function = {"name": rng.choice(NAMES), "arguments": arguments(rng)}
	if rng.random() < 0.25:
		function["arguments"] = json.dumps(function["arguments"], ensure_ascii=rng.random() < 0.5)
	if rng.oddly(0.06):
		function["arguments"] = rng.choice([None, "", [], "not json"])
	result = {"type": "function", "id": rng.choice([f"call{index:05}", f"call_{index}", f"functions.{function['name']}:{index}"]), "function": function}
	kind = rng.random() if rng.odd else 1
	if kind < 0.15:
		result.pop("type")
	elif kind < 0.25:
		result.pop("id")
	elif kind < 0.35:
		result = function
	elif kind < 0.38:
		result["id"] = None
	return result


def content(rng):
	kind = rng.random()
	if kind < (0.75 if rng.odd else 0.95):
		return text(rng)
	if not rng.odd:
		return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 2))]
	if kind < 0.95:
		parts = []
		for _ in range(rng.randint(0, 3)):
			parts.append(rng.choice([
				{"type": "text", "text": text(rng)}, {"type": "text", "text": text(rng)}, {"type": "text", "text": text(rng)},
				{"type": "text", "content": text(rng)}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
				{"type": "image", "image": "x"}, {"type": "video", "video": "v"}, {"type": "audio"}, {"type": "input_text", "text": text(rng)},
				{"type": "thinking", "thinking": text(rng)}, {"type": "reasoning", "text": text(rng)}, text(rng), {"text": text(rng)},
			]))
		return parts
	return rng.choice([None, None, "", [], {}, {"text": "x"}, 5, True, {"parts": ["a"]}])


def assistant(rng, with_tools):
	message = {"role": "assistant", "content": content(rng)}
	if with_tools and rng.random() < 0.6:
		message["tool_calls"] = [call(rng, i) for i in range(rng.choice([1, 1, 1, 2, 3, 0 if rng.odd else 1]))]
		if rng.random() < 0.5:
			message["content"] = rng.choice([None, "", text(rng)]) if rng.odd else ""
		if rng.oddly(0.1):
			message.pop("content")
	for name in ("reasoning_content", "reasoning", "thinking", "thoughts", "tool_plan"):
		if rng.random() < 0.3 if name == "reasoning_content" else rng.oddly(0.1):
			message[name] = rng.choice([None, "", []]) if rng.oddly(0.1) else text(rng)
	if rng.oddly(0.05):
		message["citations"] = True
	return message


def answer(rng, made):
	result = {"role": "tool", "content": content(rng), "tool_call_id": made.get("id"), "name": made.get("function", made).get("name")}
	if rng.oddly(0.1):
		result["role"] = rng.choice(["ipython", "function", "observation"])
	if rng.oddly(0.4):
		result.pop(rng.choice(["tool_call_id", "name"]))
	return result


def turn(rng, with_tools, is_last):
	"""A user's message and what follows."""
	messages = [{"role": "user", "content": content(rng)}]
	if is_last and rng.random() < 0.5:
		return messages
	for _ in range(rng.choice([0, 1, 2]) if with_tools else 0):
		messages.append(assistant(rng, True))
		messages += [answer(rng, made) for made in messages[-1].get("tool_calls") or [] if not rng.oddly(0.1)]
	if rng.oddly(0.3) or (is_last and messages[-1]["role"] == "tool"):
		return messages
	return messages + [assistant(rng, rng.oddly(0.5))]


def disturb(rng, messages):
	if rng.random() < 0.2:
		rng.shuffle(messages)
	if rng.random() < 0.15:
		messages.insert(rng.randrange(len(messages) + 1), {"role": rng.choice(["alien", "", "System", "assistant", "tool", "a b"]), "content": content(rng)})
	if rng.random() < 0.06:
		messages[rng.randrange(len(messages))].pop(rng.choice(["role", "content"]), None)
	if rng.random() < 0.06:
		messages[rng.randrange(len(messages))]["name"] = text(rng)


def chat(rng, unknown):
	rng.odd = rng.random() < 0.5
	with_tools = rng.random() < 0.5
	messages = []
	if rng.random() < 0.55:
		messages.append({"role": "developer" if rng.oddly(0.2) else "system", "content": content(rng)})
	n_turns = rng.randint(1, 3)
	for i in range(n_turns):
		messages += turn(rng, with_tools, i == n_turns - 1)
	if rng.odd:
		disturb(rng, messages)
	request = {"messages": messages, "add_generation_prompt": rng.random() < 0.6}
	if with_tools or rng.oddly(0.2):
		request["tools"] = [tool(rng) for _ in range(0 if rng.oddly(0.1) else rng.randint(1, 3))]
	if rng.oddly(0.2):
		request["documents"] = [{"title": text(rng), "text": text(rng)} for _ in range(rng.randint(0, 2))]
	for name in unknown:
		if name in ("functions", "datetime") and not rng.oddly(0.2):
			request[name] = text(rng)
		elif rng.oddly(0.25):
			request[name] = rng.choice([True, False, True, False, text(rng), 0, 5, "low", "high", "none", [], [text(rng)], {"a": text(rng)},
			                            arguments(rng), None])
		elif rng.random() < 0.1:
			request[name] = rng.choice([True, False, "low", "high"])
	return request


class Reference:
	"""transformers, with a tokenizer that has nothing but special tokens."""

	def __init__(self, source):
		self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")), **TOKENS)
		self.source = source

	def render(self, request):
		request = dict(request)
		messages = request.pop("messages")
		return self.tokenizer.apply_chat_template(messages, chat_template=self.source, tokenize=False, **request)


def variables(source):
	environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
	source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source)
	known = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "namespace", "range", "loop",
	         "continue_final_message"}
	return sorted(jinja2.meta.find_undeclared_variables(environment.parse(source)) - known)


def render_all(program, path, requests):
	"""Mimeo's results of the requests, a dict each."""
	with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
		json.dump(TOKENS, config)
		config.flush()
		lines = "".join(json.dumps(request) + "\n" for request in requests)
		run = subprocess.run([program, path, config.name], input=lines.encode(), stdout=subprocess.PIPE)
	if run.returncode:
		sys.exit(f"{path}: chat_render ended with {run.returncode}")
	return [json.loads(line) for line in run.stdout.splitlines()]


def differs(reference, request, result):
	"""None, or what transformers gives instead."""
	try:
		expected = reference.render(request)
	except jinja2.exceptions.TemplateError as error:
		raised = str(error)
		if "text" in result:
			return f"{type(error).__name__}: {raised}"
		if type(error) is jinja2.exceptions.TemplateError and result["message"] != raised:
			return f"raise_exception: {raised}"
		return None
	except Exception as error:
		return f"{type(error).__name__}: {error}" if "text" in result else None
	return None if result.get("text") == expected else expected


def compare(program, path, options):
	source = open(path, encoding="utf-8").read()
	rng = Random(f"{options.seed} {os.path.basename(path)}")
	names = variables(source)
	requests = [chat(rng, names) for _ in range(options.chats)]
	reference = Reference(source)
	results = render_all(program, path, requests)
	assert len(results) == len(requests)
	differences, n_text = 0, 0
	for request, result in zip(requests, results):
		expected = differs(reference, request, result)
		n_text += "text" in result
		if expected is None:
			continue
		differences += 1
		if differences <= options.show:
			print(f"--- {path}\nrequest:  {json.dumps(request)}\nexpected: {expected!r}\ngot:      {result.get('text', result)!r}")
	print(f"{os.path.basename(path)}: {len(requests)} chats, {n_text} texts, {differences} differences", flush=True)
	return differences


def is_plain(request):
	"""Whether a request has nothing but messages with roles that are words and FOREIGN letters."""
	return not set(request) - {"messages", "add_generation_prompt"} and all(
		isinstance(value, str) and (name == "role" and value.isalpha() or not set(value) - set(FOREIGN))
		for message in request["messages"] for name, value in message.items())


def check_marks(request, text, marks):
	"""
	What is wrong with the marks of a text whose users write FOREIGN letters only, or None. Numbers, names and punctuation
	of tools and of lists are foreign, too, so that what is not a letter is only checked where there are none, and quotes
	of JSON not at all.
	"""
	data = text.encode()
	if len(data) != len(marks):
		return "not one mark for each byte"
	at = 0
	for char in text:
		size = len(char.encode())
		if char in FOREIGN and marks[at:at + size] != "1" * size:
			return f"{char!r} at byte {at} is not marked"
		if char not in FOREIGN + "\"'" and "1" in marks[at:at + size] and is_plain(request):
			return f"{char!r} at byte {at} is marked: ...{data[max(0, at - 40):at + 40].decode(errors='replace')!r}"
		at += size
	for found in re.finditer(rb"<\|[^|<> ]*\|>", data):
		if len(set(marks[found.start():found.end()])) > 1:
			return f"a token is partly marked: {found.group().decode()!r}"
	return None


def check_foreign(program, path, options):
	source = open(path, encoding="utf-8").read()
	rng = Random(f"{options.seed} {os.path.basename(path)}")
	rng.letters = FOREIGN
	requests = []
	while len(requests) < options.chats:
		request = chat(rng, [])
		if not rng.odd or rng.random() < 0.2:
			requests.append(request)
	wrong, n_text = 0, 0
	for request, result in zip(requests, render_all(program, path, requests)):
		if "text" not in result:
			continue
		n_text += 1
		problem = check_marks(request, result["text"], result["foreign"])
		if problem is None:
			continue
		wrong += 1
		if wrong <= options.show:
			print(f"--- {path}\nrequest: {json.dumps(request, ensure_ascii=False)}\n{problem}")
	print(f"{os.path.basename(path)}: {len(requests)} chats, {n_text} texts, {wrong} with wrong marks", flush=True)
	return wrong


def main():
	parser = argparse.ArgumentParser()
	parser.add_argument("program")
	parser.add_argument("templates", nargs="+")
	parser.add_argument("--chats", type=int, default=200)
	parser.add_argument("--seed", type=int, default=1)
	parser.add_argument("--show", type=int, default=2)
	parser.add_argument("--foreign", action="store_true")
	options = parser.parse_args()
	check = check_foreign if options.foreign else compare
	total = sum(check(options.program, path, options) for path in options.templates)
	print(f"{len(options.templates)} templates, {total} differences")
	return total != 0


if __name__ == "__main__":
	sys.exit(main())
