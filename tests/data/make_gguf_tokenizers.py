#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/gguf/tokenizers.json: two small vocabularies as GGUF files have them, and the ids of some texts.

For development only. Needs PyPI's regex, sentencepiece and tokenizers (which trains the byte-level vocabulary).
Ids of the byte-level vocabulary are computed here, in the way of llama.cpp: added tokens are found in the text, the
regular expressions of the pre-tokenizer's name are applied one after another to the parts that the one before left,
and in each part the pair of the lowest rank is merged until there is none. Those of the other are SentencePiece's own.
"""
import io
import json
import os
import unicodedata

import regex
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = ["Hello, world! It's a test.", " two  spaces   three ", "", " ", "\n\n\t x\r\n\r\n y", "naïve café e\u0301 ok",
         "日本語 テキスト", "😀 ok", "12 345,678.9 ٣²", "a-b--c---d $+<=>^~|", "don't we'LL I'm THEY'RE", "x <|end|>y<|end|> <tool>z",
         "tests 1234567 testing", "the quick\u00a0brown  fox\n", "x,\n\n\n y\r\n\r\nz\n\n\n"]
CORPUS = ["Hello, world! It's a test of the tokenizers.", "the quick brown fox jumps over the lazy dog", "naïve café ﬁne",
          "日本語のテキスト", "12 345 678", "don't we'll I'm", "a-b--c", "test tested testing tests", "worlds worldly  two",
          "x\n\n\n y\r\n\r\nz", "a,\n\nb,\n\n", "word\n\nword"] * 5

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LATER = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE = {"default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], "gpt-2": [GPT2], "smollm": [r"\p{N}", GPT2],
       "llama-bpe": [LATER % r"\p{N}{1,3}"], "qwen2": [LATER % r"\p{N}"]}
ADDED = {"<|end|>": 3, "<tool>": 4, "<|begin|>": 3}


def byte_characters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(other)}


BYTES = byte_characters()


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {"tokens": tokens + list(ADDED), "types": [1] * len(tokens) + list(ADDED.values()),
            "merges": [" ".join(m) for m in model["merges"]], "bos": len(tokens) + 2, "eos": len(tokens)}


def split(parts, pattern):
    for part in parts:
        at = 0
        for m in regex.finditer(pattern, part):
            yield from [p for p in (part[at:m.start()], m.group()) if p]
            at = m.end()
        if at < len(part):
            yield part[at:]


def merge(word, ranks):
    while True:
        pairs = [(ranks[p], i) for i, p in enumerate(zip(word, word[1:])) if p in ranks]
        if not pairs:
            return word
        i = min(pairs)[1]
        word = word[:i] + [word[i] + word[i + 1]] + word[i + 2:]


def encode(vocabulary, pre, text):
    ids = {t: i for i, t in enumerate(vocabulary["tokens"])}
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(vocabulary["merges"])}
    out = [ids["<|begin|>"]] if pre == "llama-bpe" else []
    for piece in regex.split("(" + "|".join(map(regex.escape, ADDED)) + ")", text):
        if piece in ADDED:
            out.append(ids[piece])
            continue
        parts = [unicodedata.normalize("NFC", piece) if pre == "qwen2" else piece]
        for pattern in PRE[pre]:
            parts = list(split(parts, pattern))
        for part in parts:
            word = "".join(BYTES[b] for b in part.encode())
            known = pre == "llama-bpe" and word in ids
            out += [ids[t] for t in ([word] if known else merge(list(word), ranks))]
    return out


def pieces():
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=trained, model_type="bpe", vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["<tool>"],
        hard_vocab_limit=False, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    ids = range(sp.get_piece_size())
    kind = lambda i: (2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i)
                      else 4 if sp.id_to_piece(i) == "<tool>" else 1)
    return sp, {"tokens": [sp.id_to_piece(i) for i in ids], "types": [kind(i) for i in ids],
                "scores": [round(sp.get_score(i), 4) for i in ids], "bos": sp.bos_id(), "eos": sp.eos_id()}


if __name__ == "__main__":
    bpe = byte_level()
    sp, spm = pieces()
    # SentencePiece keeps the text around an added token together, with one space at the beginning.
    plain = [t for t in TEXTS if "<tool>" not in t and t]
    cases = [{"vocabulary": "gpt2", "pre": pre, "texts": [[t, encode(bpe, pre, t)] for t in TEXTS]} for pre in PRE]
    cases.append({"vocabulary": "llama", "pre": "default", "texts": [[t, sp.encode(t, add_bos=True)] for t in plain]})
    with open(os.path.join(HERE, "gguf", "tokenizers.json"), "w") as f:
        json.dump({"vocabularies": {"gpt2": bpe, "llama": spm}, "cases": cases}, f, ensure_ascii=False)
        f.write("\n")
