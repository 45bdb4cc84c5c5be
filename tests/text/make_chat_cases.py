#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes chat_cases.json: templates, variables and what Jinja, as transformers sets it up, makes of them.

	make_chat_cases.py > chat_cases.json

tests/text/test_chat_language.c makes a test of each claim. It needs PyPI's transformers and jinja2.
"""
import json
import os
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
from transformers.utils.chat_template_utils import _cached_compile_jinja_template

VARIABLES = {
	"user": {"name": "Ann", "items": 5, "tags": ["x", "y"], "n": None}, "list": [3, 1, 2], "names": ["bob", "Ann", "cid", "ann"],
	"text": "  Hello, Wörld \n", "greek": "ΟΔΟΣ ΣΑΣ", "quoted": "it's \"q\" <b>&", "lines": "a\nb\r\nc\n\nd", "yes": True, "no": False, "nothing": None,
	"rows": [{"k": "x", "v": 2}, {"k": "Y", "v": 1}, {"v": 3}, {"k": "x", "v": 2}], "deep": {"a": [1, {"b": None}], "ü": 2.5}, "empty": [],
	"chars": "a\u0001\u007f\u00a0\u200b\U0001f600\\", "number": 7, "real": 2.5,
}

CLAIMS = {
	"a newline behind a block is removed, behind an output it is not": [
		"a\n{% if yes %}\nb\n{% endif %}\nc", "{{ 1 }}\n{{ 2 }}\n", "{# c #}\nx", "{% if yes +%}\nx{% endif %}", "{% set a = 1 %}  \nx"],
	"indentation before a block is removed, before an output it is not": [
		"a\n   {% if yes %}x{% endif %}", "   {% if yes %}x{% endif %}", "a {% if yes %}x{% endif %}", "\n  {%+ if yes %}x{% endif %}", "  {# c #}x", "\t{{ 1 }}"],
	"a minus removes all white space at its side of a tag": [
		"a \n\n {%- if yes -%} \n\n b {%- endif %}", "a\u00a0\u2003\n{{- 1 -}}\n\t\u2028b", "x {#- c -#} y", "x {#- c #} y"],
	"the newline at the end of a template is removed, once": ["a\n", "a\n\n", "{{ 1 }}\n", "\n"],
	"line ends become newlines, in strings, too": ["a\r\nb\rc", "{{ 'a\r\nb' }}", "{% if yes %}\r\nx{% endif %}"],
	"a raw block is text": ["{% raw %}{{ x }} {% if %}{% endraw %}", "a {%- raw -%} {# #} {%- endraw -%} b", "  {% raw %}\nx\n{% endraw %}\ny"],
	"comments may contain anything": ["a{# {{ }} {% %} ' #}b", "{#-#}x", "{##}x"],
	"a closing brace pair within a dict is not the end of a tag": ["{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a.b}}"],
	"strings have Python's escapes": [r"{{ 'a\n\t\\\'\"\x41\u00e9\U0001F600\101\q' }}", r'{{ "a\'b" }}', "{{ 'a' 'b' \"c\" }}", "{{ 'a\\\nb' }}"],
	"numbers have Python's forms": ["{{ 1_000 + 0x1F + 0o17 + 0b11 }}", "{{ 1.5e3 }} {{ 1e-7 }} {{ 2e16 }} {{ 10.0 }}", "{{ [1, 2].1 }}"],
	"floats are printed as Python prints them": [
		"{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456789012345680.0 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}",
		"{{ 2 ** -44 }} {{ 9007199254740993.0 }} {{ 1 / 3 }} {{ -0.0 }} {{ 100.0 }} {{ 1e22 }} {{ 1.5 }}"],
	"values are printed as Python prints them": [
		"{{ deep }} {{ (1,) }} {{ () }} {{ none }} {{ true }} {{ [undefined_name] }} {{ undefined_name }}", "{{ [quoted, \"it's\", 'a\"b', chars, lines] }}",
		"{{ user.tags | string + '!' }} {{ {1: 'a', none: 2, 1.5: true} }}", "{{ deep.items() }} {{ deep.keys() }} {{ deep.values() }}", "{{ namespace(a=1) }}"],
	"operators bind as in Jinja": [
		"{{ 1 + 2 * 3 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 'a' ~ 1 + 2 ~ 'b' if no else 'a' ~ 1 ~ 2 }}", "{{ not 1 == 2 and no or yes }}",
		"{{ 1 if yes else 2 if no else 3 }}", "{{ 'a' if no }}|", "{{ -1 | abs }} {{ (-1) | abs }}", "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 < 3 in [3] }}",
		"{{ yes is defined and no is defined }} {{ not nothing is none }} {{ nothing is not none }}", "{{ 'a' in 'abc' == true }} {{ 'x' not in names }}"],
	"arithmetic is Python's": [
		"{{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 4 / 2 }} {{ 2 ** -1 }}",
		"{{ true + true }} {{ 1 + 1.0 }} {{ 'a' * 3 }} {{ [1] * 2 + [3] }} {{ (1, 2) + (3,) }} {{ 3 * 'ab' }} {{ 'a' * -1 }}|", "{{ 1 / 0 }}", "{{ 1 % 0 }}",
		"{{ 'a' + 1 }}", "{{ 1 + nothing }}", "{{ 'a' - 'b' }}", "{{ [1] + (2,) }}", "{{ 1.0 // 0 }}"],
	"and, or give an operand": ["{{ 0 or 'a' }} {{ 1 and 'b' }} {{ '' and 1 }}| {{ [] or {} }} {{ nothing or no }}"],
	"truth is Python's": [
		"{% for x in [0, 1, 0.0, '', 'a', [], [0], {}, {'a': 1}, none, true, (), (1,)] %}{{ 'T' if x else 'F' }}{% endfor %}",
		"{{ 'T' if undefined_name else 'F' }}{{ 'T' if empty | select else 'F' }}{{ 'T' if {}.items() else 'F' }}{{ 'T' if range(0) else 'F' }}"],
	"comparisons are Python's": [
		"{{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ [1, 2] == [1, 2.0] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1} }} {{ none == false }} {{ a == b }}",
		"{{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ 'é' > 'z' }} {{ [1, 2] < [1, 3] }} {{ [1] < [1, 0] }} {{ 9007199254740993 == 9007199254740992.0 }}", "{{ 1 < 'a' }}", "{{ none < 1 }}",
		"{{ a < 1 }}", "{{ {} < {} }}", "{{ 1 < none }}"],
	"in looks into strings, lists, dicts and what can be iterated": [
		"{{ 'ell' in text }} {{ 'k' in rows[0] }} {{ 2 in list }} {{ 2.0 in list }} {{ none in [none] }} {{ 'a' in undefined_name }} {{ '' in 'a' }} {{ 1 in range(2) }}",
		"{{ 1 in 'a' }}", "{{ none in 'a' }}", "{{ 1 in 2 }}", "{{ 'a' in nothing }}", "{{ [] in {} }}"],
	"slices count characters, also backward": [
		"{{ text[2:7] }}|{{ text[::-1] }}|{{ text[-3:] }}|{{ text[:-3:2] }}|{{ text[100:] }}|{{ text[-100:3] }}|", "{{ list[1:] }} {{ list[::-1] }} {{ list[:-1] }} {{ list[5:1:-2] }}",
		"{{ (1, 2, 3)[1:] }} {{ list[none:2] }}", "{{ greek[0] }}{{ greek[-1] }}{{ greek[50] }}|", "{{ user[1:] }}", "{{ undefined_name[1:] }}", "{{ list['a':] }}", "{{ nothing[1:] }}"],
	"a point prefers methods, brackets prefer items": [
		"{{ user['items'] }} {{ user.name }} {{ user['name'] }} {{ user.items is callable }} {{ user.get('items') }}", "{{ user['get']('name') }} {{ 'abc'['upper']() }}",
		"{{ user.nothing }}|{{ user['nothing'] }}|{{ list.x }}|{{ list['0'] }}|{{ list[9] }}|{{ list.0 }}|{{ list[true] }}|{{ list[1.0] }}|{{ number.x }}|"],
	"what is undefined is empty, and its members are errors": [
		"{{ a }}|{{ a | length }}|{{ a | list }}|{{ a == b }}|{{ a is defined }}|{{ a | default('d') }}|{% for x in a %}{% endfor %}|{{ a ~ 'x' }}|{{ not a }}", "{{ a.b }}",
		"{{ a['b'] }}", "{{ a() }}", "{{ a + 1 }}", "{{ -a }}", "{{ user.x.y }}", "{{ a | int }}", "{{ a | tojson }}", "{{ a | items | list }}", "{{ user.n.x }}|{{ user.n.x.y }}"],
	"the sandbox hides internals and what changes lists and dicts": [
		"{{ list.append(1) }}", "{{ user.pop('name') }}", "{{ user.update({}) }}", "{{ list.append is defined }} {{ list.__class__ }}| {{ ''.__class__.__mro__ }}",
		"{{ user.__class__.x }}", "{{ list.sort() }}", "{{ list.copy() }} {{ user.copy() == user }}",
		"{{ {'pop': 1, 'x': 2}.pop }}|{{ {'pop': 1}['pop'] }}|{{ {'pop': 1}.pop is defined }}"],
	"namespaces keep what is set in loops": [
		"{% set ns = namespace(n=0, s='') %}{% for x in list %}{% set ns.n = ns.n + x %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.n }} {{ ns.s }} {{ ns.x is defined }}",
		"{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }} {{ ns['a'] }}", "{% set user.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{{ namespace(_x=1) }}"],
	"what is set in a loop ends with each turn": [
		"{% set x = 0 %}{% for i in list %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% for i in [1, 2] %}{% if loop.first %}{% set y = 5 %}{% endif %}{{ y }}|{% endfor %}{{ y }}|",
		"{% for x in list %}{% endfor %}{{ x }}|"],
	"what is set in an if stays": ["{% if yes %}{% set x = 1 %}{% endif %}{{ x }}", "{% if no %}{% set list = 1 %}{% endif %}{{ list }}", "{% set list = list[1:] %}{{ list }}"],
	"tuples are unpacked": [
		"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}", "{% for k, v in user.items() %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in [[1, 2], 'xy'] %}{{ a }}{{ b }}{% endfor %}",
		"{% for a, b in [[1]] %}{% endfor %}", "{% set a, b = [1, 2, 3] %}", "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}"],
	"the loop variable tells the place": [
		"{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}",
		"{% for x in list %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }} {{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
		"{% for x in names %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(x | lower | length) }} {% endfor %}", "{% for x in list %}{% for y in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
		"{% for x in rows | selectattr('k') %}{{ loop.index }}/{{ loop.length }} {{ loop.last }} {% endfor %}"],
	"a loop's test filters its items, and its else is for none": [
		"{% for x in list if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }} {% else %}none{% endfor %}", "{% for x in empty %}x{% else %}none{% endfor %}", "{% for x in list if x > 5 %}x{% else %}none{% endfor %}",
		"{% for k, v in user.items() if v is string %}{{ k }}{{ loop.length }}{% endfor %}", "{% set ns = namespace(on=true) %}{% for x in list if ns.on %}{{ x }}{% set ns.on = false %}{% endfor %}"],
	"break and continue end a turn, which else takes for none": [
		"{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
		"{% for x in list %}{% break %}{% else %}else{% endfor %}", "{% for x in list %}{% continue %}{% else %}else{% endfor %}", "{% for x in list %}{% for y in list %}{% break %}{% endfor %}{{ x }}{% endfor %}"],
	"loops go over strings, dicts, ranges and iterators": [
		"{% for x in 'aß中' %}{{ x }}.{% endfor %}", "{% for x in user %}{{ x }}.{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}{{ range(1, 10, 4) | list }}",
		"{% set it = list | map('string') %}{% for x in it %}{{ x }}{% endfor %}{% for x in it %}{{ x }}{% endfor %}|", "{% for x in 5 %}{% endfor %}", "{% for x in nothing %}{% endfor %}"],
	"recursive loops call themselves": ["{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}"],
	"macros take arguments by place and by name, with defaults": [
		"{% macro f(a, b=2, c='x' ~ b) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f(*[7, 8, 9]) }}{{ f(**{'a': 1, 'c': 0}) }}{{ f() }}",
		"{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}",
		"{% macro f(a) %}{% endmacro %}{{ f(1, a=1) }}", "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}"],
	"macros see the variables around their definition": [
		"{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{% set x = 3 %}{{ f() }}{{ x }}", "{% macro f() %}{{ y }}|{{ list }}{% endmacro %}{% for y in [1] %}{{ f() }}{% endfor %}",
		"{% for y in [1, 2] %}{% macro f() %}{{ y }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}",
		"{% set ns = namespace() %}{% for y in [1, 2] %}{% if y == 1 %}{% macro f() %}{{ y }}{{ z }}|{% endmacro %}{% set ns.f = f %}{% endif %}{% set z = y * 2 %}{{ ns.f() }}{% endfor %}",
		"{% macro f(x) %}{% if x > 1 %}{% set y = x %}{% endif %}{{ y }}|{% endmacro %}{{ f(2) }}{{ f(1) }}"],
	"a call block hands its body to a macro": [
		"{% macro f(a) %}<{{ caller() }}{{ a }}>{% endmacro %}{% call f(1) %}body {{ list }}{% endcall %}", "{% macro f() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) f() %}{{ a }}{{ b }}{% endcall %}",
		"{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}"],
	"set, filter, with and generation have blocks": [
		"{% set x %}a{{ 1 }}{% endset %}[{{ x }}]", "{% set x | upper | trim %} a {% endset %}[{{ x }}]", "{% filter upper | replace('A', 'b') %}xa{{ 'a' }}{% endfilter %}",
		"{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{% endwith %}{{ a }}|{{ c }}|", "a{% generation %}b{% set x = 1 %}{% endgeneration %}{{ x }}c", "{% print 1, 'a' %}"],
	"string methods are Python's": [
		"{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip('\\n') }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.rstrip('ba') }}|{{ '\\u2003a\\u00a0'.strip() }}|",
		"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ ' a b  c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split() }} {{ ''.split(',') }}", "{{ 'a'.split('') }}",
		"{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\\u2028b\\x1cc'.splitlines() }}", "{{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '.') }}",
		"{{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcabc'.rfind('b') }} {{ 'üüab'.find('a') }} {{ 'abcabc'.find('b', 2) }} {{ 'aXa'.count('a') }} {{ 'abc'.index('c') }}", "{{ 'abc'.index('x') }}",
		"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('b', 1) }} {{ 'a.b.c'.partition('.') }} {{ 'a.b.c'.rpartition('.') }} {{ 'ab'.partition('x') }}",
		"{{ 'abc'.removeprefix('a').removesuffix('c') }} {{ '-'.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ 'aß'.isalpha() }} {{ ' '.isspace() }} {{ ''.isspace() }} {{ 'Ab'.isupper() }}", "{{ ','.join([1]) }}"],
	"case follows Unicode": ["{{ 'Straße ŉ ﬁ ᾳ ΐ'.upper() }} {{ greek.lower() }} {{ 'İI'.lower() }} {{ \"they're bill's\".title() }} {{ 'éCOLE ßa'.capitalize() }} {{ 'ǆ ǅ ŉa ﬁx ᾳx'.title() }}"],
	"format and % fill in values": [
		"{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}{{}}'.format('a', none) }} {{ '{x!r:>5}|{y:<4}|{z:^5}|'.format(x='a', y='b', z='c') }} {{ '{:05d} {:.2f} {:x} {:+d}'.format(42, 3.14159, 255, 7) }}",
		"{{ '%s and %r' % ('a', 'b') }} {{ '%d%%' % 5 }} {{ '%5.1f|%-5s|%05d' % (2.25, 'x', 42) }} {{ '%(a)s' % {'a': 1} }} {{ '%s' % none }}", "{{ '%s' | format('a') }} {{ '%(x)s' | format(x=1) }}",
		"{{ '%d' % 'a' }}", "{{ '%s %s' % ('a',) }}", "{{ '%s' % ('a', 'b') }}", "{{ '{}'.format() }}", "{{ '{a}'.format(b=1) }}"],
	"methods of dicts and lists are Python's": [
		"{{ user.get('name') }} {{ user.get('x') }} {{ user.get('x', 1) }} {{ deep.keys() | list }} {{ deep.values() | list }} {{ deep.items() | list }}", "{{ names.index('cid') }} {{ list.count(1) }}", "{{ list.index(9) }}", "{{ user.get([]) }}"],
	"tojson writes JSON as Python does": [
		"{{ deep | tojson }} {{ chars | tojson }} {{ [1.0, 1e100, true, none, 'é', (1,)] | tojson }} {{ {1: 2, none: 3, true: 4} | tojson }}", "{{ deep | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [[]] | tojson(indent='>') }}",
		"{{ chars | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ {'a': 1} | tojson(indent=1, separators=('; ', '=')) }}",
		"{{ quoted | tojson }}", "{{ range(2) | tojson }}", "{{ undefined_name | tojson }}", "{{ namespace() | tojson }}", "{{ {(1, 2): 3} | tojson }}"],
	"filters of text": [
		"[{{ text | trim }}] [{{ 'xax' | trim('x') }}] {{ 'a' | upper }}{{ 'B' | lower }}{{ 'aB' | capitalize }}{{ 5 | string + 'x' }}{{ 'aXbX' | replace('X', 1) }}{{ 'aaa' | replace('a', 'b', 1) }}",
		"{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb\n\nc' | indent(2, true, true) }}|{{ 'a\nb' | indent('> ', first=true) }}|{{ 'a\n' | indent }}|", "{{ quoted | e }} {{ none | upper }} {{ 1.5 | trim }}",
		"{{ \"a-b (c) they're [x] <y> éCOLE\" | title }} {{ 'system' | title }}"],
	"what is safe escapes what is added to it": [
		"{{ 'a<' | safe + quoted }}|{{ quoted + 'a<' | safe }}|{{ ('a<' | safe) ~ quoted }}|{{ ('<' | safe).upper() + '<' }}|{{ ('<a' | safe)[1:] + '<' }}|{{ '<' | safe | tojson + '<' }}|{{ '<' | e | e }}|{{ ['<' | safe] }}",
		"{{ ('<%s>' | safe).replace('%s', '&') }} {{ ('<' | safe) * 2 + '<' }} {{ ('a<b' | safe).split('<') | join('<') + '<' }} {{ '<' | safe is escaped }} {{ '<' | safe | trim + '&' }}"],
	"filters of numbers": [
		"{{ '42' | int }} {{ ' 4_2 ' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 'ff' | int(base=16) }} {{ -2.7 | int }} {{ none | int }} {{ true | int }} {{ '1e3' | int }}",
		"{{ '2.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ -3 | abs }} {{ 2.5 | round }} {{ 2.567 | round(2) }} {{ 2.5 | round(0, 'ceil') }} {{ 3 | round }} {{ 2.1 | round(method='floor') }} {{ 0.125 | round(2) }}", "{{ 'a' | abs }}"],
	"filters of sequences": [
		"{{ list | length }} {{ list | first }} {{ list | last }} {{ list | sum }} {{ list | max }} {{ list | min }} {{ list | sort }} {{ list | reverse | list }} {{ 'abc' | reverse }} {{ list | join('-') }} {{ 'ab' | list }}",
		"{{ empty | first }}|{{ empty | last }}|{{ empty | max }}|{{ empty | sum }}|{{ 'é' | length }}{{ user | length }}", "{{ names | sort }} {{ names | sort(case_sensitive=true) }} {{ names | sort(reverse=true) }} {{ rows | sort(attribute='v') }}",
		"{{ names | unique | list }} {{ names | unique(true) | list }} {{ names | max }} {{ rows | sum(attribute='v') }} {{ rows | join(',', attribute='k') }} {{ rows | max(attribute='v') }}", "{{ [1, 'a'] | sort }}",
		"{{ 5 | length }}", "{{ 5 | list }}", "{{ list | map('string') | length }}", "{{ list | select | last }}", "{{ rows | sort(attribute='k,v') }}"],
	"filters that select and map": [
		"{{ rows | selectattr('k') | list }} {{ rows | selectattr('k', 'defined') | map(attribute='v') | list }} {{ rows | selectattr('v', 'gt', 1) | list | length }} {{ rows | rejectattr('k', 'equalto', 'x') | list }}",
		"{{ list | select('>', 1) | list }} {{ list | reject('odd') | list }} {{ [0, 1, none, ''] | select | list }} {{ names | map('upper') | join }} {{ rows | map(attribute='k', default='?') | list }}", "{{ [[1, 2], [3]] | map('first') | list }}",
		"{{ [['a', {'b': 1}]] | map(attribute='1.b') | list }} {{ names | map('replace', 'n', 'm') | list }} {{ list | map('default', 5) | list }}", "{{ list | select('nosuch') | list }}", "{{ list | map('nosuch') | list }}", "{{ list | map | list }}"],
	"filters of dicts": [
		"{{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }} {{ user | items | list }}", "{{ nothing | items | list }}", "{{ list | dictsort }}",
		"{{ rows | groupby('v') }} {% for g in rows | groupby('k', default='z') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}", "{{ dict(a=1) }} {{ dict(user, name=2).name }} {{ dict([['x', 1]]) }}", "{{ {1: 2, 1.0: 3, true: 4} }}",
		"{{ user[(1, [])] }}|{{ user[[]] }}|", "{{ {(1, []): 1} }}", "{{ user.keys() in user }}"],
	"default replaces what is undefined, and what is false if asked to": ["{{ a | default('x') }}{{ '' | default('x') }}{{ '' | default('x', true) }}{{ none | d('x') }}{{ none | d('x', boolean=true) }}{{ a | d }}|{{ user.a.b | default(1) }}"],
	"tests": [
		"{% for x in [1, 1.5, 'a', none, true, [1], (1,), {'a': 1}] %}{{ x is number }}{{ x is integer }}{{ x is float }}{{ x is string }}{{ x is none }}{{ x is boolean }}{{ x is true }}{{ x is mapping }}{{ x is sequence }}{{ x is iterable }} {% endfor %}",
		"{{ 3 is odd }}{{ 3 is even }}{{ 9 is divisibleby 3 }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 1 is lt 2 }}{{ 'a' is in 'abc' }}{{ none is sameas none }}{{ 1 is sameas true }}{{ range is callable }}",
		"{{ a is sequence }}{{ a is iterable }}{{ list | map('string') is sequence }}{{ user.items() is sequence }}{{ user.items() is iterable }}{{ range(2) is sequence }}{{ a is mapping }}", "{{ 'a' is odd }}"],
	"what the template raises is its message": ["{{ raise_exception('Roles must alternate: ' ~ user.name) }}", "{% if user.x is not defined %}{{ raise_exception('no x') }}{% endif %}", "{{ raise_exception(5) }}"],
	"a filter that does not exist fails where it is reached, outside a condition at once": [
		"{% if no %}{{ 'a' | nosuch }}{% endif %}x", "{% if yes %}{{ 'a' | nosuch }}{% endif %}x", "{{ 'a' | nosuch if no else 'b' }}", "{% if no %}{% for x in list %}{{ x | nosuch }}{% endfor %}{% endif %}x", "{{ 'a' | nosuch }}",
		"{% if no %}{{ 1 is nosuch }}{% endif %}x", "{{ 'b' if yes else 'a' | nosuch }}"],
	"errors of syntax": [
		"{% if %}", "{% for x in list %}", "{{ 1 +", "{{ 'a }}", "{% endif %}", "{% nosuch %}", "{{ (1 }}", "{{ 1 2 }}", "{% set 1 = 2 %}", "{% break %}", "{# x", "{% raw %}", "{{ a! }}", "{% for loop in list %}{% endfor %}",
		"{% macro f(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{% set true = 1 %}", "{{ ]"],
	"calls have Python's rules": ["{{ 'a'() }}", "{{ 'a'.upper(1) }}", "{{ 'a'.split(x=1) }}", "{{ range() }}", "{{ range(200000) }}", "{{ range(1, 2, 0) }}", "{{ user.get() }}", "{{ 'a' | upper(1) }}", "{{ 'a' | trim(chars='a', x=1) }}|"],
}


def expect(template):
	try:
		text = _cached_compile_jinja_template(template).render(**json.loads(json.dumps(VARIABLES)), messages=[{"role": "user"}], tools=None, documents=None, add_generation_prompt=True)
	except Exception as error:
		raised = str(error) if type(error).__name__ == "TemplateError" else None
		return {"template": template, "raises": raised} if raised is not None else {"template": template, "fails": True}
	return {"template": template, "text": text}


def main():
	cases = {claim: [expect(template) for template in templates] for claim, templates in CLAIMS.items()}
	print("{\n\"variables\": " + json.dumps(VARIABLES) + ",\n\"claims\": {")
	print(",\n".join(json.dumps(claim) + ": [\n" + ",\n".join(json.dumps(case) for case in entries) + "]" for claim, entries in cases.items()))
	print("}}")
	return 0


if __name__ == "__main__":
	sys.exit(main())
