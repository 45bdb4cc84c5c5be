#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare mimeo-tokenize with Hugging Face's `tokenizers`, id for id, and print the speed of both.

	compare.py [--program PATH] [--megabytes N] [--seed N] [--verbose] TOKENIZER...

TOKENIZER is a folder with tokenizer.json, or such a file. The input is N MB (default 10) of prose, code, many scripts,
emoji, right-to-left text, combining marks, invalid UTF-8, long runs, special tokens, and random tokens of the vocabulary,
with characters of Unicode 14 only, the version that PCRE2 10.42 knows; a further part has newer characters, whose
differences are counted apart. If there is llama.cpp.inp in the folder, it is compared too, and llama.cpp.out with it.
Speed is bytes by CPU time of one thread, without reading the tokenizer. Needs PyPI's tokenizers.
"""
import argparse
import glob
import json
import os
import random
import resource
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer

SCRIPTS = [
    (0x20, 0x7e), (0xa1, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x531, 0x586), (0x5d0, 0x5ea), (0x620, 0x6d3), (0x904, 0x97f),
    (0x985, 0x9b9), (0xb85, 0xbb9), (0xe01, 0xe5b), (0x1000, 0x109f), (0x10d0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137f),
    (0x1780, 0x17dd), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x218f), (0x2190, 0x2bff), (0x3000, 0x30ff), (0x3131, 0x318e),
    (0x4e00, 0x9fff), (0xa000, 0xa4c6), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xfb00, 0xfdff), (0xfe00, 0xffef),
    (0x10000, 0x1007f), (0x1d400, 0x1d7ff), (0x1f300, 0x1f9ff), (0x20000, 0x2a6df),
]
EMOJI = ["😀", "👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "1️⃣", "🧑🏿\u200d🚀", "🫠", "☕", "✨"]
RTL = "مرحبا بالعالم، كيف حالك؟ שלום עולם, מה שלומך? \u200f\u202bنص\u202c \u2067עברית\u2069 ١٢٣٤"


def known(c):
    return unicodedata.category(c) not in ("Cn", "Cs")


def assigned(first, last):
    return [chr(c) for c in range(first, last + 1) if known(chr(c))]


class Inputs:
    def __init__(self, tokenizer, seed):
        self.random = random.Random(seed)
        self.tokenizer = tokenizer
        self.vocabulary = list(tokenizer.get_vocab(with_added_tokens=False).values())
        self.added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
        self.scripts = [assigned(*s) for s in SCRIPTS]
        self.marks = [chr(c) for c in range(0x300, 0x11000) if unicodedata.category(chr(c)).startswith("M")]
        self.files = {
            "prose": glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/share/doc/*/README*") + glob.glob(
                "/usr/share/perl/*/pod/*.pod"),
            "code": glob.glob(os.path.dirname(os.__file__) + "/*.py") + glob.glob("/usr/include/*.h"),
        }

    def from_files(self, kind, size):
        out = []
        while sum(map(len, out)) < size and self.files[kind]:
            path = self.random.choice(self.files[kind])
            try:
                data = Path(path).read_bytes()
            except OSError:
                continue
            if data[:2] != b"\x1f\x8b":
                out.append(data[: self.random.randrange(1, 60000)])
        return b"".join(out)[:size]

    def words(self, size):
        out, n = [], 0
        while n < size:
            script = self.random.choice(self.scripts)
            word = "".join(self.random.choices(script, k=self.random.randrange(1, 12)))
            out.append(word + self.random.choice([" ", " ", " ", "  ", "\n", ", ", ".", "\u3000", "\t", "", "\r\n"]))
            n += len(word.encode())
        return "".join(out).encode()

    def characters(self, size):
        space = [chr(c) for c in range(1, 0x110000) if known(chr(c)) and not 0xe000 <= c < 0xf900 and c < 0xf0000]
        return "".join(self.random.choices(space, k=size // 3)).encode()

    def emoji(self, size):
        parts = EMOJI + ["text ", " ", "!", "\n"]
        return "".join(self.random.choices(parts, k=size // 8)).encode()

    def right_to_left(self, size):
        words = RTL.split(" ")
        return " ".join(self.random.choices(words, k=size // 10)).encode()

    def combining(self, size):
        out = []
        for _ in range(size // 8):
            out.append(self.random.choice("aeioAEnsu кя\u0915\u1100\uac00") + "".join(
                self.random.choices(self.marks, k=self.random.choice([0, 1, 1, 2, 3, 40]))))
        return "".join(out).encode()

    def invalid(self, size):
        return bytes(self.random.choices(range(1, 256), k=size // 2)) + self.broken(self.words(size // 2))

    def broken(self, data):
        data = bytearray(data)
        for _ in range(len(data) // 20):
            data[self.random.randrange(len(data))] = self.random.randrange(1, 256)
        return bytes(data)

    def runs(self, size):
        out, n = [], 0
        while n < size:
            unit = self.random.choice([" ", "\n", "a", "=", "-", "\t", "0", "ab", "▁", "é", "一", "😀", "\r\n", "A", ".", " a", "ー"])
            part = unit * self.random.choice([2, 3, 7, 16, 100, 1000, 5000])
            out.append(part + self.random.choice(["", " ", "x", "\n"]))
            n += len(part.encode())
        return "".join(out).encode()

    def special(self, size):
        parts = self.added + [" ", "  ", "\n", "word", " word", "<", ">", "|", "[", "é", "<|im_start|>user\n", "</s>", "[MASK]"]
        out, n = [], 0
        while n < size:
            part = self.random.choice(parts)
            out.append(part)
            n += len(part.encode())
        return "".join(out).encode()

    def tokens(self, size):
        ids = self.random.choices(self.vocabulary, k=size // 4)
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return "".join(c for c in text if known(c)).encode()[:size]

    def make(self, size):
        """[(kind, bytes)]: documents of 1 to 64 kB, without NUL, and a few of 1 MB."""
        makers = {
            "prose": lambda n: self.from_files("prose", n), "code": lambda n: self.from_files("code", n), "scripts": self.words,
            "characters": self.characters, "emoji": self.emoji, "rtl": self.right_to_left, "marks": self.combining,
            "invalid": self.invalid, "runs": self.runs, "special": self.special, "tokens": self.tokens,
        }
        documents, total = [("long line", b"abcdefghij" * 100000), ("long prose", self.from_files("prose", 1000000))], 2000000
        while total < size:
            kind = self.random.choice(list(makers) + ["prose", "code", "prose", "code", "tokens"])
            data = makers[kind](self.random.choice([1000, 4000, 16000, 64000])).replace(b"\0", b"")
            documents.append((kind, data))
            total += len(data)
        return documents

    def newer(self, size):
        import itertools
        unknown = [chr(c) for c in itertools.chain(range(0x800, 0xd800), range(0x10000, 0x20000)) if unicodedata.category(chr(c)) == "Cn"]
        return [("newer", "".join(self.random.choices(unknown + list("a b1.,"), k=1000)).encode()) for _ in range(size // 3000)]


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Program:
    def __init__(self, path, tokenizer):
        self.command = [path, "--null", "--tokenizer", str(tokenizer)]

    def run(self, data, *options):
        before = cpu_of_children()
        done = subprocess.run(self.command + list(options), input=data, stdout=subprocess.PIPE, check=True)
        return done.stdout, cpu_of_children() - before

    def encode(self, documents, *options):
        out, seconds = self.run(b"".join(d + b"\0" for d in documents), *options)
        return [list(map(int, line.split())) for line in out.split(b"\n")[:-1]], seconds

    def decode(self, lists, *options):
        out, _ = self.run(b"".join(b" ".join(b"%d" % i for i in ids) + b"\n" for ids in lists), "--decode", *options)
        return [t.decode() for t in out.split(b"\0")[:-1]]


def first_difference(ours, theirs):
    i = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return i, ours[max(i - 3, 0):i + 5], theirs[max(i - 3, 0):i + 5]


def encode_all(tokenizer, texts, special):
    before = time.process_time()
    ids = [tokenizer.encode(t, add_special_tokens=special).ids for t in texts]
    return ids, time.process_time() - before


class Differences:
    """How many results differ, and of these, how many inputs have characters that are newer."""
    wrong = newer = 0

    def __iadd__(self, other):
        self.wrong += other.wrong
        self.newer += other.newer
        return self


def count_differences(what, kinds, ours, theirs, arguments, tokenizer):
    found, wrong = Differences(), 0
    assert len(ours) == len(theirs), (what, len(ours), len(theirs))
    for kind, a, b in zip(kinds, ours, theirs):
        if a == b:
            continue
        if kind == "newer":
            found.newer += 1
            continue
        found.wrong += 1
        wrong = found.wrong
        if arguments.verbose and wrong <= 3:
            i, x, y = first_difference(a, b)
            print(f"  {what}, {kind}: from {i}: {x} is {y}", file=sys.stderr)
            if isinstance(a, list):
                print(f"    {tokenizer.decode(y, skip_special_tokens=False)!r}", file=sys.stderr)
    return found


def literal_twin(tokenizer):
    """For text of users: the tokens that count as special with MIMEO_TEXT_LITERAL are not found in it."""
    read = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    for token in read["added_tokens"]:
        if not token["special"] and not token["normalized"] and token["content"] not in vocabulary:
            token["content"] = "\U0010fffd" + token["content"]
    twin = Tokenizer.from_str(json.dumps(read))
    twin.encode_special_tokens = True
    return twin


def compare_documents(tokenizer, program, documents, arguments):
    """(ids, differences, our seconds, their seconds)"""
    data = [d for _, d in documents]
    texts = [d.decode(errors="replace") for d in data]
    kinds = [k if all(map(known, set(t))) else "newer" for (k, _), t in zip(documents, texts)]
    wrong = Differences()
    theirs, their_seconds = encode_all(tokenizer, texts, False)
    _, idle = program.encode([])
    ours, seconds = program.encode(data)
    wrong += count_differences("encode", kinds, ours, theirs, arguments, tokenizer)
    few = list(range(0, len(data), 5))
    special, _ = encode_all(tokenizer, [texts[i] for i in few], True)
    wrong += count_differences("special", [kinds[i] for i in few], program.encode([data[i] for i in few], "--special")[0], special,
                               arguments, tokenizer)
    literal, _ = encode_all(literal_twin(tokenizer), [texts[i] for i in few], False)
    wrong += count_differences("literal", [kinds[i] for i in few], program.encode([data[i] for i in few], "--literal")[0], literal,
                               arguments, tokenizer)
    for skip in (False, True):
        decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for ids in theirs]
        keep = [i for i, t in enumerate(decoded) if "\0" not in t]
        wrong += count_differences("decode", [kinds[i] for i in keep],
                                   program.decode([theirs[i] for i in keep], *(["--skip-special"] if skip else [])),
                                   [decoded[i] for i in keep], arguments, tokenizer)
    return sum(map(len, theirs)), wrong, max(seconds - idle, 1e-6), their_seconds


def compare_random_ids(tokenizer, program, arguments, seed):
    """Ids that no text may have: half characters, unknown ids."""
    draw = random.Random(seed)
    n = tokenizer.get_vocab_size(with_added_tokens=True)
    lists = [[draw.randrange(n + 20) for _ in range(draw.randrange(1, 60))] for _ in range(2000)]
    wrong = Differences()
    for skip in (False, True):
        decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists]
        keep = [i for i, t in enumerate(decoded) if "\0" not in t]
        ours = program.decode([lists[i] for i in keep], *(["--skip-special"] if skip else []))
        wrong += count_differences("decode", ["random ids"] * len(keep), ours, [decoded[i] for i in keep], arguments, tokenizer)
    return wrong


def compare_llama_cpp(folder, program):
    """(inputs, differences) to llama.cpp's own ids"""
    path = folder / "llama.cpp.inp"
    if not path.exists():
        return 0, 0
    inputs = path.read_bytes().split(b"\n__ggml_vocab_test__\n")[:-1]
    expected = [list(map(int, line.split())) for line in (folder / "llama.cpp.out").read_text().split("\n")[:-1]]
    keep = [i for i, data in enumerate(inputs) if data and b"\0" not in data]
    ours, _ = program.encode([inputs[i] for i in keep])
    return len(keep), sum(a != expected[i] for a, i in zip(ours, keep))


def compare(path, arguments):
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    program = Program(arguments.program, path)
    inputs = Inputs(tokenizer, arguments.seed)
    documents = inputs.make(int(arguments.megabytes * 1e6))
    n_ids, wrong, seconds, their_seconds = compare_documents(tokenizer, program, documents, arguments)
    wrong += compare_random_ids(tokenizer, program, arguments, arguments.seed)
    _, newer, _, _ = compare_documents(tokenizer, program, inputs.newer(60000), arguments)
    wrong += newer
    n_llama, wrong_llama = compare_llama_cpp(folder, program)
    size = sum(len(d) for _, d in documents) / 1e6
    print(f"{folder.name:18} {len(documents):6} {size:7.2f} {n_ids:10} {wrong.wrong:11} {wrong.newer:6} {n_llama:5} {wrong_llama:5} "
          f"{size / seconds:8.2f} {size / their_seconds:8.2f} {their_seconds / seconds:6.1f}", flush=True)
    return wrong.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="mimeo-tokenize")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("tokenizers", nargs="+", metavar="TOKENIZER")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(f"{'vocabulary':18} {'inputs':>6} {'MB':>7} {'ids':>10} {'differences':>11} {'newer':>6} {'llama.cpp':>11} "
          f"{'MB/s':>8} {'theirs':>8} {'times':>6}")
    return 1 if sum(compare(t, arguments) for t in arguments.tokenizers) else 0


if __name__ == "__main__":
    sys.exit(main())
