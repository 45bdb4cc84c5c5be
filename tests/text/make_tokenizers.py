#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write tests/text/tokenizers.json: small tokenizers, one for each component and option, with the ids and the text that
Hugging Face's `tokenizers` gives for some inputs. Models are in a table of their own, because many entries share one. Ids
with special tokens and as literal text are left out where they are the same, and so is the text without special tokens.

	make_tokenizers.py > tests/text/tokenizers.json

Needs PyPI's tokenizers.
"""
import base64
import json
import random
import struct
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, __version__, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

from compare import literal_twin

TEXTS = [
    "Hello, world! It's a test.", " two  spaces   three ", "", " ", "\n\n\t x\r\n", "naïve café e\u0301\u0323 \u1e69\u0307 ﬁ½²Å",
    "日本語のテキスト と한국어", "😀👩\u200d👧 ok", "12 345,678.9 ²³ ٣", "ABC Straße İI ΑΣ", "a-b--c---d", "<s>x</s> <s> <mask>y",
    "العربية עברית", "x\u00a0y\u2003z\u200b\ufeff\u0085.", "\x01\x7f\u0000end\ufffd", "don't we'LL I'm", "▁a ▁ b▁",
    "\u1100\u1161\u11a7\u11a8 \uac00\u11a8 \uac00\u11a7x", "e\u08d3\u0323\u0301 a\u0301\u1dfb\u0323",
]
CORPUS = ["Hello, world! It's a test of the tokenizers.", "the quick brown fox jumps over the lazy dog", "naïve café ﬁne",
          "日本語のテキスト", "12 345 678", "don't we'll I'm", "a-b--c", "test tested testing tests", "world worlds worldly"] * 5


def characters():
    return sorted({c for t in TEXTS for c in t if c != "\0"} | set("abcdefghijklmnopqrstuvwxyz ▁\u0301\u0323\u0307iI1234fss5ĠĊ"))


def spelling():
    """Each character is a token; the last one of a word has a suffix, which shows where words end."""
    vocab = {"?": 0}
    for c in characters():
        vocab[c] = len(vocab)
        vocab[c + "</w>"] = len(vocab)
    return models.BPE(vocab, [], unk_token="?", end_of_word_suffix="</w>")


def byte_level_bpe(**options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    model.update(options)
    return model


def trained_bpe(**options):
    """Without a pre-tokenizer, over ▁ in place of spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.train_from_iterator([t.replace(" ", "▁") for t in CORPUS], trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    if options.get("byte_fallback"):
        model["vocab"].update({f"<0x{i:02X}>": len(model["vocab"]) + i for i in range(256)})
    model.update(options)
    return model


def trained_affixes():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], continuing_subword_prefix="##", end_of_word_suffix="</w>", show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def trained_unigram(**options):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    if options.get("byte_fallback"):
        model["vocab"] += [[f"<0x{i:02X}>", -20.0] for i in range(256)]
    model.update(options)
    return model


def trained_wordpiece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    model.update(options)
    return model


def tied_unigram():
    """Pairs of letters that score what their letters do together, up to the last bit."""
    draw = random.Random(1)
    scores = {c: -draw.uniform(3, 9) for c in "abcdefghij"}
    pairs = {a + b: scores[a] + scores[b] for a in scores for b in scores}
    return {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], *map(list, scores.items()), *map(list, pairs.items())],
            "byte_fallback": False}


# ---- a precompiled map of characters ----

def double_array(words):
    """Darts-clone's double array of {key: value}: units of label, offset and leaf bit."""
    units, used = [0], {0}

    def unit(i):
        while len(units) <= i:
            units.append(0)

    def build(node, keys):
        labels = sorted({k[0] if k else 0 for k, _ in keys})
        offset = next(o for o in range(256, 1 << 20, 256) if all((node ^ o ^ l) not in used for l in labels))
        base = node ^ offset
        units[node] |= offset << 10 | (0x100 if 0 in labels else 0)
        for label in labels:
            unit(base ^ label)
            used.add(base ^ label)
        for label in labels:
            below = [(k[1:], v) for k, v in keys if (k[0] if k else 0) == label]
            if label == 0:
                units[base] = below[0][1] | 1 << 31
            else:
                units[base ^ label] |= label
                build(base ^ label, below)

    build(0, [(k, v) for k, v in words.items()])
    return b"".join(struct.pack("<I", u) for u in units)


def charsmap(pairs):
    strings, words = b"", {}
    for key, value in pairs.items():
        words[key.encode()] = len(strings)
        strings += value.encode() + b"\0"
    trie = double_array(words)
    return struct.pack("<I", len(trie)) + trie + strings


MAP = charsmap({"ﬁ": "fi", "½": "1/2", "²": "2", "\t": " ", "\n": " ", "\r": " ", "e\u0301": "é", "A": "a", "\x01": "", "Å": "A", "\u200b": "",
                "テ": "て", "\ufeff": ""})


# ---- what is compared ----

MODELS, ENTRIES = [], []


def enter(claim, model=None, texts=TEXTS, added=(), **parts):
    tokenizer = json.loads(Tokenizer(model if isinstance(model, models.Model) else spelling()).to_str())
    if isinstance(model, dict):
        tokenizer["model"] = model
    for name, part in parts.items():
        if not isinstance(part, dict):
            holder = Tokenizer(models.BPE())
            setattr(holder, name, part)
            part = json.loads(holder.to_str())[name]
        tokenizer[name] = part
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
    tokenizer.add_tokens(list(added))
    read = json.loads(tokenizer.to_str())
    if isinstance(model, dict):
        # as it was given: options in older forms
        read["model"] = model
    for name, part in parts.items():
        if isinstance(part, dict):
            read[name] = part
    twin = literal_twin(tokenizer)
    cases = []
    for text in texts:
        case = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
        special = tokenizer.encode(text, add_special_tokens=True).ids
        if special != case["ids"]:
            case["special"] = special
        literal = twin.encode(text, add_special_tokens=False).ids
        if literal != case["ids"]:
            case["literal"] = literal
        case["decoded"] = tokenizer.decode(special, skip_special_tokens=False)
        skipped = tokenizer.decode(special, skip_special_tokens=True)
        if skipped != case["decoded"]:
            case["skipped"] = skipped
        cases.append(case)
    used = read.pop("model")
    if used not in MODELS:
        MODELS.append(used)
    ENTRIES.append({"claim": claim, "model": MODELS.index(used), "tokenizer": read, "cases": cases})


def enter_models():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    enter("BPE over bytes", byte_level_bpe(), pre_tokenizer=byte_level, decoder=decoders.ByteLevel())
    enter("BPE that ignores merges of words in the vocabulary", byte_level_bpe(ignore_merges=True, merges=[]),
          pre_tokenizer=byte_level, decoder=decoders.ByteLevel())
    old = byte_level_bpe(continuing_subword_prefix="", end_of_word_suffix="")
    old["merges"] = [" ".join(m) for m in old["merges"]]
    del old["type"]
    enter("BPE with merges as strings and without a type", old, pre_tokenizer=byte_level, decoder=decoders.ByteLevel())
    llama = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    enter("BPE with byte fallback", trained_bpe(byte_fallback=True, fuse_unk=True), normalizer=prepend, decoder=llama)
    enter("BPE with fused unknown tokens", trained_bpe(fuse_unk=True), normalizer=prepend, decoder=llama)
    enter("BPE with unknown tokens one by one", trained_bpe(), normalizer=prepend, decoder=llama)
    enter("BPE that leaves out unknown characters", trained_bpe(unk_token=None), normalizer=prepend, decoder=llama)
    partly = trained_bpe(byte_fallback=True, fuse_unk=True)
    for token in ("<0xE6>", "<0xF0>"):
        del partly["vocab"][token]
    partly["vocab"] = {t: i for i, t in enumerate(partly["vocab"])}
    enter("BPE with byte fallback for some bytes only", partly, normalizer=prepend, decoder=llama)
    enter("BPE with a continuing prefix and a suffix", trained_affixes(), pre_tokenizer=pre_tokenizers.WhitespaceSplit(),
          decoder=decoders.BPEDecoder())
    enter("Unigram", trained_unigram(), pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())
    enter("Unigram with byte fallback", trained_unigram(byte_fallback=True), pre_tokenizer=pre_tokenizers.Metaspace(),
          decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))
    letters = [a + b for a in "abcdefghij" for b in "abcdefghij"]
    enter("Unigram with scores that differ in the last bit", tied_unigram(), texts=letters + ["".join(letters[:40])])
    enter("WordPiece", trained_wordpiece(), pre_tokenizer=pre_tokenizers.BertPreTokenizer(), decoder=decoders.WordPiece())
    enter("WordPiece with short words", trained_wordpiece(max_input_chars_per_word=4), pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
          decoder=decoders.WordPiece(cleanup=False))
    enter("WordLevel", models.WordLevel({"a": 0, "b": 1, "?": 2, "Hello": 3, "test": 4, "三": 5, "x": 6}, unk_token="?"),
          pre_tokenizer=pre_tokenizers.Whitespace())


def enter_normalizers():
    n = normalizers
    for form in (n.NFC, n.NFD, n.NFKC, n.NFKD, n.Lowercase, n.StripAccents, n.Nmt):
        enter(f"normalizer {form.__name__}", normalizer=form())
    enter("normalizer Strip of both sides", normalizer=n.Strip())
    enter("normalizer Strip of the right side", normalizer=n.Strip(left=False))
    for name, options in (("", {}), (" without lower case", {"lowercase": False}), (" that keeps accents", {"strip_accents": False}),
                          (" that does not clean", {"clean_text": False}), (" without CJK", {"handle_chinese_chars": False})):
        enter("BertNormalizer" + name, normalizer=n.BertNormalizer(**options))
    enter("normalizer Replace of a string", normalizer=n.Replace("a", "▁▁"))
    enter("normalizer Replace of an expression", normalizer=n.Replace(Regex(r"\s+|l{2}"), " "))
    enter("normalizer Prepend", normalizer=n.Prepend("▁"))
    enter("normalizer Precompiled", normalizer=n.Precompiled(MAP))
    enter("normalizer ByteLevel", byte_level_bpe(), normalizer=n.ByteLevel(), decoder=decoders.ByteLevel())
    enter("normalizers in a sequence", normalizer=n.Sequence([n.NFD(), n.StripAccents(), n.Sequence([n.Lowercase(), n.Strip()])]))


def enter_pre_tokenizers():
    p = pre_tokenizers
    for regex in (True, False):
        for prefix in (True, False):
            enter(f"ByteLevel {'with' if regex else 'without'} its expression, {'with' if prefix else 'without'} a space before",
                  byte_level_bpe(), pre_tokenizer=p.ByteLevel(add_prefix_space=prefix, use_regex=regex), decoder=decoders.ByteLevel())
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        enter(f"Split {behavior}", pre_tokenizer=p.Split("-", behavior))
        enter(f"Split {behavior}, inverted", pre_tokenizer=p.Split(Regex(r"\w+"), behavior, invert=True))
        enter(f"Punctuation {behavior}", pre_tokenizer=p.Punctuation(behavior))
    enter("Split at empty matches", pre_tokenizer=p.Split(Regex(r"(?=\d)|(?<=l)"), "isolated"))
    enter("Split by an expression of GPT-4's kind", pre_tokenizer=p.Split(Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"))
    enter("Split by an expression with intersections", pre_tokenizer=p.Split(Regex(
        r"[\p{Han}]+|[\p{L}\p{M}&&[^\p{Han}]]+|\p{N}{1,2}+|[^\s\p{L}]"), "removed", invert=True))
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            metaspace = dict(replacement="▁", prepend_scheme=scheme, split=split)
            enter(f"Metaspace {scheme}{'' if split else ', not split'}", pre_tokenizer=p.Metaspace(**metaspace),
                  decoder=decoders.Metaspace(**metaspace), added=[AddedToken("<s>", special=True, normalized=False)])
    enter("Metaspace as older files have it", pre_tokenizer={"type": "Metaspace", "replacement": "▁", "add_prefix_space": True})
    enter("Metaspace behind a normalizer that strips", normalizer=normalizers.Strip(),
          pre_tokenizer=p.Metaspace(prepend_scheme="first"))
    enter("Digits one by one", pre_tokenizer=p.Digits(individual_digits=True))
    enter("Digits in runs", pre_tokenizer=p.Digits())
    enter("Whitespace", pre_tokenizer=p.Whitespace())
    enter("WhitespaceSplit", pre_tokenizer=p.WhitespaceSplit())
    enter("BertPreTokenizer", pre_tokenizer=p.BertPreTokenizer())
    enter("CharDelimiterSplit", pre_tokenizer=p.CharDelimiterSplit("-"))
    enter("FixedLength", pre_tokenizer=p.FixedLength(3))
    enter("pre-tokenizers in a sequence", byte_level_bpe(), decoder=decoders.ByteLevel(), pre_tokenizer=p.Sequence(
        [p.Punctuation("contiguous"), p.ByteLevel(add_prefix_space=False), p.Digits(), p.Split(Regex("[0-9]{3}"), "isolated")]))


def enter_others():
    byte_level = dict(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel())
    template = processors.TemplateProcessing(single="<s> $A </s> </s>", pair="$A $B", special_tokens=[("<s>", 5), ("</s>", 7)])
    enter("post-processor TemplateProcessing", byte_level_bpe(), post_processor=template, **byte_level)
    enter("post-processor BertProcessing", byte_level_bpe(), post_processor=processors.BertProcessing(("</s>", 7), ("<s>", 5)), **byte_level)
    enter("post-processor RobertaProcessing", byte_level_bpe(), post_processor=processors.RobertaProcessing(("</s>", 7), ("<s>", 5)),
          **byte_level)
    enter("post-processor ByteLevel", byte_level_bpe(), post_processor=processors.ByteLevel(), **byte_level)
    enter("post-processors in a sequence", byte_level_bpe(), post_processor=processors.Sequence([processors.ByteLevel(), template]),
          **byte_level)
    d = decoders
    for claim, decoder in (
            ("no decoder", None), ("decoder Fuse", d.Fuse()), ("decoder Strip of the start", d.Strip("l", 2, 0)), ("decoder Strip of the end", d.Strip(">", 0, 1)),
            ("decoder Strip behind Fuse", d.Sequence([d.Fuse(), d.Strip("<", 2, 0), d.Strip(">", 0, 2)])),
            ("decoder Replace of a string", d.Replace("l", "LL")), ("decoder Replace of an expression", d.Replace(Regex("[a-e]+"), "_")),
            ("decoder Replace behind Fuse", d.Sequence([d.Fuse(), d.Replace("ll", "L"), d.Replace("</w>", "|")])),
            ("decoder Replace of an expression behind Fuse", d.Sequence([d.Fuse(), d.Replace(Regex("[a-e]+"), "_")])),
            ("decoder Metaspace behind Fuse", d.Sequence([d.Fuse(), d.Metaspace()])),
            ("decoder BPEDecoder", d.BPEDecoder("</w>")), ("decoder BPEDecoder before Fuse", d.Sequence([d.BPEDecoder("</w>"), d.Fuse()])),
            ("decoder WordPiece", d.WordPiece(prefix="l", cleanup=True)), ("decoder CTC", d.CTC("l", "o", True)),
            ("decoder CTC without cleanup", d.CTC("</w>", "|", False)),
            ("decoder ByteLevel before Strip", d.Sequence([d.ByteLevel(), d.Strip("H", 1, 0)]))):
        # Strip and BPEDecoder of Hugging Face fail on some of the texts.
        texts = [t for t in TEXTS if t.strip(" ")] if decoder else TEXTS
        enter(claim, texts=texts, pre_tokenizer=pre_tokenizers.WhitespaceSplit(), **({"decoder": decoder} if decoder else {}))
    special = dict(special=True, normalized=False)
    enter("special tokens", byte_level_bpe(), added=[AddedToken("<s>", **special), AddedToken("</s>", **special)], **byte_level)
    enter("added tokens with spaces around", byte_level_bpe(), added=[
        AddedToken("<s>", lstrip=True, rstrip=True, **special), AddedToken("x", lstrip=True), AddedToken("  ", rstrip=True),
        AddedToken("-", rstrip=True), AddedToken("</s>", rstrip=True, **special)], **byte_level)
    enter("added tokens that are single words", byte_level_bpe(), added=[
        AddedToken("a", single_word=True), AddedToken("test", single_word=True), AddedToken("é", single_word=True),
        AddedToken("語", single_word=True)], **byte_level)
    enter("added tokens behind the normalizer", byte_level_bpe(), normalizer=normalizers.Lowercase(), added=[
        AddedToken("ABC", normalized=True), AddedToken("Hello", normalized=False), AddedToken("IT", normalized=True),
        AddedToken("<MASK>", special=True, normalized=True)], **byte_level)
    enter("the longest of several added tokens", byte_level_bpe(), added=["wor", "world", "worldly", "lo,", "-", "--", "<", "<s>"], **byte_level)
    enter("an added token that is in the vocabulary", byte_level_bpe(), added=[AddedToken("Hello", **special), "the"], **byte_level)


def main():
    enter_models()
    enter_normalizers()
    enter_pre_tokenizers()
    enter_others()
    print(f"tokenizers {__version__}: {len(ENTRIES)} entries", file=sys.stderr)
    lines = [",\n".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in part) for part in (MODELS, ENTRIES)]
    print(f'{{"models":[\n{lines[0]}\n],"entries":[\n{lines[1]}\n]}}')


if __name__ == "__main__":
    main()
