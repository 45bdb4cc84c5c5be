#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Evaluates random expressions and statements with Jinja, as transformers sets it up, and with Mimeo, and compares the results.

	compare_expressions.py RENDER [--n N] [--seed N] [--show N]

RENDER is the program tests/text/chat_render of a build. What Mimeo refuses as not supported is counted apart.
"""
import argparse
import collections
import json
import os
import random
import subprocess
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
from transformers.utils.chat_template_utils import _cached_compile_jinja_template

VARIABLES = {
	"s": "Hello, Wörld", "t": "  a b\tc \n", "e": "", "u": "ΑΣ straße 日本", "q": "it's \"q\" <b>&amp;", "n": 7, "z": 0, "m": -3, "f": 2.5,
	"g": 1e20, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "lm": [1, "a", None, True, 2.0], "le": [],
	"d": {"b": 1, "A": 2, "c": [1, {"x": "y"}], "items": 5}, "de": {}, "ld": [{"k": "x", "v": 2}, {"k": "Y", "v": 1}, {"v": 3}, {"k": "x"}],
	"nn": None, "tt": True, "ff": False, "multi": "a\nb\r\nc\n\nd", "num": " 42 ", "flt": "3.50", "csv": "a,b,,c", "p": "a%sb%d",
}
NAMES = list(VARIABLES) + ["undef", "range(4)", "range(5, 0, -2)", "ns"]
STRINGS = ["''", "'a'", "'b'", "','", "' '", "'Hello'", "'l'", "'%s|%s'", "'x' 'y'", "\"it's\"", "'\\n'", "'\\u00e9\\x41\\\\'", "'k'", "'items'", "'upper'"]
NUMBERS = ["0", "1", "2", "-1", "3", "10", "1.5", "0.1", "1e3", "0x1F", "1_000", "-2"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true", "false", "odd", "even",
         "divisibleby 2", "divisibleby(3)", "lower", "upper", "callable", "escaped", "in l", "in 'abc'", "in d", "eq 1", "ne('a')", "lt 2", "ge(1)", "equalto 'x'",
         "sameas none", "sameas(true)", "not defined", "not none", "not in ls"]
OF = {  # expressions of one type, where X, S, N, L and D stand for others of any type, strings, numbers, lists and dicts
	"S": ["s", "t", "e", "u", "q", "multi", "num", "csv", "p", "ls[0]", "d.c[1].x", *STRINGS, "S + S", "S ~ X", "N ~ S", "S * 2", "(S if X else S)", "S[1:]", "S[:-1]",
	      "S[::-1]", "S[1:5:2]", "S[-3:]", "S[N:]", "S[0]", "S.upper()", "S.lower()", "S.strip()", "S.strip(S)", "S.lstrip('Hab ')", "S.rstrip()", "S.title()",
	      "S.capitalize()", "S.replace(S, S)", "S.replace('l', 'LL', 1)", "S.join(ls)", "S.join(S)", "'{}-{}'.format(X, X)", "'{1}{0}'.format(S, N)",
	      "'{a:>5}|{b!r}'.format(a=S, b=X)", "'%s;%r' % (X, X)", "'%d' % N", "'%5.2f|%-6s|' % (N, S)", "S.removeprefix('He')", "S.removesuffix(S)", "X|string", "S|upper", "S|title",
	      "S|lower", "S|title", "S|capitalize", "S|trim", "S|trim(S)", "S|replace(S, S)", "S|indent", "S|indent(2, true)", "S|indent('> ', blank=true)", "X|tojson", "X|tojson(indent=2)",
	      "X|tojson(sort_keys=true)", "X|tojson(ensure_ascii=true)", "X|tojson(indent=1, separators=(',', ':'))", "L|join", "L|join(S)", "D|join('-')", "S|e", "S|safe + S",
	      "(S|safe).split()|join", "S|reverse", "S|default(S, true)", "undef|default(S)", "ld|join(',', attribute='v')", "('%s' ~ S)|format(X)", "S.partition(',')[0]",
	      "S.rpartition(' ')|last", "S|first", "S|safe|replace('a', '<')", "(S|safe)|upper"],
	"N": ["n", "z", "m", "f", "g", "l[0]", *NUMBERS, "N + N", "N - N", "N * N", "N / N", "N // N", "N % N", "2 ** N", "-N", "X|length", "S|length", "S|int", "S|float", "S|int(7)",
	      "S|int(base=16)", "N|abs", "N|round", "N|round(1)", "N|round(2, 'floor')", "N|int", "L|sum", "S.find(S)", "S.rfind(S)", "S.count(S)", "[N, N]|max", "[N, N]|min",
	      "l|sum", "(N if X else N)", "loop.index", "S|count", "true", "N|float"],
	"L": ["l", "ls", "lm", "le", "ld", "range(4)", "range(5, 0, -2)", "[X, X]", "[S]", "[N, N, N]", "(X, X)", "L + L", "L[1:]", "L[::-1]", "L[:2]", "L[N:]", "S.split()",
	      "S.split(S)", "S.split(',', 1)", "S.rsplit(',', 1)", "S.splitlines()", "S.splitlines(true)", "D|dictsort", "D|dictsort(by='value')", "D.items()|list", "D.keys()|list",
	      "D|items|list", "D|list", "S|list", "L|list", "L|sort", "ls|sort(reverse=true)", "ls|sort(case_sensitive=true)", "ld|sort(attribute='v')", "L|unique|list",
	      "L|reverse|list", "L|select|list", "L|reject|list", "L|select('string')|list", "L|reject('none')|list", "L|map('string')|list", "ld|map(attribute='k')|list",
	      "ld|map(attribute='k', default='?')|list", "ld|selectattr('k')|list", "ld|selectattr('k', 'eq', 'x')|list", "ld|rejectattr('k', 'defined')|list",
	      "ld|groupby('v')|list", "ld|groupby('v')|map(attribute='list')|list", "[3, 1, N]|sort", "(L if X else L)", "L * 2", "L|map('length')|list", "D.values()|list"],
	"D": ["d", "de", "{'a': X}", "{'b': X, 'a': S}", "{N: X}", "dict(a=X, b=N)", "dict(d, z=S)", "ld[0]", "d.c[1]", "dict([['x', X]])", "(D if X else D)"],
	"X": ["S", "S", "N", "N", "L", "L", "D", "nn", "tt", "ff", "undef", "none", "X == X", "N < N", "S < S", "L < L", "S in S", "X in L", "S in D", "S not in ls", "X is TEST",
	      "not X", "X and X", "X or X", "L[N]", "L|first", "L|last", "L|max", "D.b", "D['b']", "D.get('b')", "D.get(S, X)", "D[S]", "D.zz", "S.startswith(S)", "S.isdigit()",
	      "S.endswith((S, S))", "S.isupper()", "D.items()", "D.keys()", "L|length > N", "N <= N < N", "(X if X)", "ns.a", "ns", "l.index(1)", "L.count(X)", "X is not TEST",
	      "S|attr('upper')|string|length > 0", "L[0].k", "L|map(attribute='k')|first", "X|default(X, true)", "X != X", "N == N", "S.isalpha()", "S is TEST"],
}


def expression(rng, depth=0, kind="X"):
	if rng.random() < 0.03:
		kind = "X"
	forms = OF[kind]
	for _ in range(20):
		form = rng.choice(forms)
		if depth < 4 or not any(c.isupper() for c in form.replace("TEST", "").replace("Hab", "") if c in "XSNLD"):
			break
	out, at = "", 0
	while at < len(form):
		if form.startswith("TEST", at):
			out, at = out + rng.choice(TESTS), at + 4
		elif form[at] in OF and not (form[at - 1:at].isalnum() or form[at + 1:at + 2].isalnum()) and form[at - 1:at] not in ("'", "\\"):
			inner = expression(rng, depth + 1, form[at])
			out, at = out + (inner if inner.isalnum() or rng.random() < 0.1 else f"({inner})"), at + 1
		else:
			out, at = out + form[at], at + 1
	return out


def tag(rng, body):
	return "{%" + rng.choice(["", "-", "", "+"]) + " " + body + " " + rng.choice(["", "-", ""]) + "%}" + rng.choice(["", "\n", "  ", "\n  ", "x"])


def statements(rng, depth=0):
	result = ""
	for _ in range(rng.randint(1, 3)):
		kind = rng.random()
		if depth > 2 or kind < 0.35:
			result += "{{" + rng.choice(["", "-"]) + " " + expression(rng, 2) + " " + rng.choice(["", "-"]) + "}}" + rng.choice(["", "\n", " ", "."])
		elif kind < 0.45:
			result += tag(rng, f"set {rng.choice(['s', 'x', 'y', 'n'])} = {expression(rng, 2)}")
		elif kind < 0.5:
			result += tag(rng, f"set ns.{rng.choice(['a', 'b'])} = {expression(rng, 2)}")
		elif kind < 0.64:
			result += tag(rng, f"if {expression(rng, 2)}") + statements(rng, depth + 1)
			if rng.random() < 0.3:
				result += tag(rng, f"elif {expression(rng, 2)}") + statements(rng, depth + 1)
			if rng.random() < 0.5:
				result += tag(rng, "else") + statements(rng, depth + 1)
			result += tag(rng, "endif")
		elif kind < 0.84:
			test = f" if {expression(rng, 3)}" if rng.random() < 0.2 else ""
			result += tag(rng, f"for {rng.choice(['x', 'y', 'x, y', 's'])} in {rng.choice([expression(rng, 2), rng.choice(NAMES), 'l', 'd.items()', 'ls', 'ld'])}{test}")
			result += rng.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.previtem }}", "{{ loop.nextitem }}", "{{ loop.revindex0 }}",
			                      "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(x) }}", "{{ x }}", "{{ x ~ y }}"])
			if rng.random() < 0.2:
				result += "{% if " + expression(rng, 3) + " %}{% " + rng.choice(["break", "continue"]) + " %}{% endif %}"
			result += statements(rng, depth + 1)
			if rng.random() < 0.2:
				result += tag(rng, "else") + statements(rng, depth + 1)
			result += tag(rng, "endfor")
		elif kind < 0.88:
			result += tag(rng, "set " + rng.choice(["x", "y | upper", "ns.a"])) + statements(rng, depth + 1) + tag(rng, "endset")
		elif kind < 0.93:
			name = rng.choice(["f", "h"])
			result += tag(rng, f"macro {name}({rng.choice(['', 'a', 'a, b=1', 'a=s, b=a', 's'])})") + statements(rng, depth + 1)
			result += rng.choice(["{{ a }}", "{{ kwargs }}", "{{ varargs }}", "{{ caller() }}", "{{ b }}"]) + tag(rng, "endmacro")
			result += "{{ " + name + "(" + rng.choice(["", "1", "1, 2", "a=1", "b='x'", "1, b=2", "1, c=2", "*l", "**de"]) + ") }}"
		elif kind < 0.96:
			result += tag(rng, "with x = " + expression(rng, 3))
			result += statements(rng, depth + 1) + tag(rng, "endwith")
		elif kind < 0.98:
			result += tag(rng, "filter " + rng.choice(["upper", "trim", "indent(2)", "replace('a', 'b')"])) + statements(rng, depth + 1) + tag(rng, "endfilter")
		else:
			result += rng.choice(["{# comment #}\n", "{#- x -#} ", "{% raw %}{{ x }}{% endraw %}\n", "{%- raw -%} {% {% endraw -%} y"])
	return result


def expected(source):
	try:
		return _cached_compile_jinja_template(source).render(**json.loads(json.dumps(VARIABLES)), messages=[{"role": "user"}], tools=None, documents=None,
		                                                     add_generation_prompt=True)
	except RecursionError:
		raise
	except Exception as error:
		return error


def main():
	parser = argparse.ArgumentParser()
	parser.add_argument("program")
	parser.add_argument("--n", type=int, default=2000)
	parser.add_argument("--seed", type=int, default=1)
	parser.add_argument("--show", type=int, default=10)
	parser.add_argument("--refused", action="store_true", help="show what is not supported")
	options = parser.parse_args()
	rng = random.Random(options.seed)
	sources = ["{% set ns = namespace(a=1) %}" + ("{{ " + expression(rng) + " }}" if rng.random() < 0.6 else statements(rng)) for _ in range(options.n)]
	requests = [dict(VARIABLES, messages=[{"role": "user"}], chat_template=source) for source in sources]
	lines = "".join(json.dumps(request) + "\n" for request in requests)
	run = subprocess.run([options.program, "-"], input=lines.encode(), stdout=subprocess.PIPE, check=True)
	counts = collections.Counter()
	for source, line in zip(sources, run.stdout.splitlines()):
		got, want = json.loads(line), expected(source)
		failed = isinstance(want, Exception)
		if not failed and " object at 0x" in want:
			counts["addresses"] += 1
		elif got.get("status") == -10:
			counts["not supported" if not failed else "errors"] += 1
			if not failed:
				counts[got["message"].split(": ", 1)[-1]] += 1
				if options.refused:
					print(f"--- {source}\nrefused: {got['message']}")
		elif failed and "text" not in got:
			counts["errors"] += 1
		elif not failed and got.get("text") == want:
			counts["texts"] += 1
		else:
			counts["differences"] += 1
			if counts["differences"] <= options.show:
				print(f"--- {source}\nexpected: {want!r}\ngot:      {got.get('text', got)!r}")
	print(", ".join(f"{n} {what}" for what, n in counts.most_common()))
	return counts["differences"] != 0


if __name__ == "__main__":
	sys.exit(main())
