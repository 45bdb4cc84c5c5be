#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A published model against dense arithmetic: SmolLM2-135M-Instruct, or another Llama model with a tokenizer.

	MIMEO_REFERENCE_MODEL=FOLDER MIMEO_DEVICE=cpu MIMEO_BUILD=build-test tests/http/test_reference.py

The reference is numpy in float32 on the weights as stored, and has no cache. It computes the logits of a prompt and the
daemon's greedy answer in one pass: every id must have the largest logit of its position, which makes the answer equal to
the reference's own. An id that is not the largest is accepted within the device's rounding (relative to the largest
logit), and counted. The model is not part of the tree: without MIMEO_REFERENCE_MODEL, and without numpy, the tests are skipped.
"""
import functools
import json
import os
import pathlib
import subprocess
import sys

import rig

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}[rig.DEVICE]
N_TOKENS = 48
N_SURE = 20
OPTIONS = ["--kv-pages", "1024"]
TEXTS = [
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,",
    "Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse,",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune,",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:",
    "Four score and seven years ago our fathers brought forth on this continent, a new nation,",
    "When in the Course of human events, it becomes necessary for one people to dissolve the political bands",
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING",
    "Als Gregor Samsa eines Morgens aus unruhigen Träumen erwachte, fand er sich in seinem Bett",
    "Longtemps, je me suis couché de bonne heure. Parfois, à peine ma bougie éteinte,",
    "En un lugar de la Mancha, de cuyo nombre no quiero acordarme, no ha mucho tiempo que vivía",
    "The mitochondrion is an organelle found in the cells of most eukaryotes. Its main function is",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n",
    "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\tfor (int i = 0; i < argc; i++)\n",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3,000 metres it boils at",
    (rig.SOURCE / "README.md").read_text()[:2500],
]
QUESTIONS = [
    "What is the capital of France?", "Explain in two sentences why the sky is blue.", "Write a haiku about the sea.",
    "Translate \"good morning\" into Spanish, French and German.", "List three prime numbers larger than 100.",
]

PASSAGES = [
    "Once upon a midnight dreary, while I pondered, weak and weary, over many a quaint and curious volume of "
    "forgotten lore, while I nodded, nearly napping, suddenly there came a tapping, as of some one gently "
    "rapping, rapping at my chamber door. ",
    "En un lugar de la Mancha, de cuyo nombre no quiero acordarme, no ha mucho tiempo que vivía un hidalgo de "
    "los de lanza en astillero, adarga antigua, rocín flaco y galgo corredor. ",
    "There now is your insular city of the Manhattoes, belted round by wharves as Indian isles by coral reefs "
    "- commerce surrounds it with her surf. ",
    "The Lord is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me "
    "beside the still waters. He restoreth my soul: he leadeth me in the paths of righteousness for his name's "
    "sake. ",
    "Nel mezzo del cammin di nostra vita mi ritrovai per una selva oscura, ché la diritta via era smarrita. ",
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in "
    "Liberty, and dedicated to the proposition that all men are created equal. ",
    "The Time Traveller (for so it will be convenient to speak of him) was expounding a recondite matter to "
    "us. His pale grey eyes shone and twinkled, and his usually pale face was flushed and animated. ",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in "
    "want of a wife. However little known the feelings or views of such a man may be on his first entering a "
    "neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is "
    "considered the rightful property of some one or other of their daughters. ",
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer the slings and "
    "arrows of outrageous fortune, or to take arms against a sea of troubles, and by opposing end them. ",
    "Dorothy lived in the midst of the great Kansas prairies, with Uncle Henry, who was a farmer, and Aunt Em, "
    "who was the farmer's wife. ",
    "Once upon a time there were four little Rabbits, and their names were Flopsy, Mopsy, Cotton-tail, and "
    "Peter. They lived with their Mother in a sand-bank, underneath the root of a very big fir-tree. ",
    "def area(width, height):\n    \"\"\"Return the area of a rectangle.\"\"\"\n    return width * height\n\n\n",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: "
    "once or twice she had peeped into the book her sister was reading, but it had no pictures or "
    "conversations in it, \"and what is the use of a book,\" thought Alice \"without pictures or "
    "conversations?\" ",
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience and should act towards one another in a spirit of brotherhood. ",
    "Als Gregor Samsa eines Morgens aus unruhigen Träumen erwachte, fand er sich in seinem Bett zu einem "
    "ungeheueren Ungeziefer verwandelt. Er lag auf seinem panzerartig harten Rücken und sah, wenn er den Kopf "
    "ein wenig hob, seinen gewölbten, braunen Bauch. ",
    "You will rejoice to hear that no disaster has accompanied the commencement of an enterprise which you "
    "have regarded with such evil forebodings. I arrived here yesterday, and my first task is to assure my "
    "dear sister of my welfare. ",
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT "
    "LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. ",
    "Left Munich at 8:35 P.M., on 1st May, arriving at Vienna early next morning; should have arrived at 6:46, "
    "but train was an hour late. ",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it "
    "was the season of Darkness, ",
    "Longtemps, je me suis couché de bonne heure. Parfois, à peine ma bougie éteinte, mes yeux se fermaient si "
    "vite que je n'avais pas le temps de me dire: Je m'endors. ",
]


class Llama:
    """config.json and model.safetensors of a Llama model without rope scaling and biases."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.n_heads = self.config["num_attention_heads"]
        self.n_kv_heads = self.config["num_key_value_heads"]
        self.head_dim = self.config.get("head_dim", self.config["hidden_size"] // self.n_heads)
        assert self.config["model_type"] == "llama" and not self.config.get("rope_scaling")
        data = np.memmap(folder / "model.safetensors", np.uint8, "r")
        n = int(data[:8].view(np.uint64)[0])
        self.tensors, self.data = json.loads(bytes(data[8:8 + n])), data[8 + n:]

    @functools.cache
    def weight(self, name):
        entry = self.tensors[name]
        first, end = entry["data_offsets"]
        raw = np.array(self.data[first:end])
        if entry["dtype"] == "BF16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
        return raw.view({"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32).reshape(entry["shape"])

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config["rms_norm_eps"])) * self.weight(name)

    def rope(self, x):
        """[heads, tokens, head_dim], by halves."""
        half = self.head_dim // 2
        frequency = float(self.config["rope_theta"]) ** -(np.arange(half) / half)
        angle = np.arange(x.shape[1])[:, None] * frequency
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, layer):
        def heads(name, n):
            return (x @ self.weight(f"{layer}.self_attn.{name}.weight").T).reshape(len(x), n, self.head_dim).transpose(1, 0, 2)
        group = self.n_heads // self.n_kv_heads
        q = self.rope(heads("q_proj", self.n_heads))
        k = self.rope(heads("k_proj", self.n_kv_heads)).repeat(group, 0)
        v = heads("v_proj", self.n_kv_heads).repeat(group, 0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(self.head_dim))
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = (weights / weights.sum(-1, keepdims=True)) @ v
        return out.transpose(1, 0, 2).reshape(len(x), -1) @ self.weight(f"{layer}.self_attn.o_proj.weight").T

    def mlp(self, x, layer):
        gate = x @ self.weight(f"{layer}.mlp.gate_proj.weight").T
        up = x @ self.weight(f"{layer}.mlp.up_proj.weight").T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"{layer}.mlp.down_proj.weight").T

    def logits(self, ids, first):
        """Of the positions from `first` on: [n, vocab_size]"""
        embedding = self.weight("model.embed_tokens.weight")
        x = embedding[ids]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            x = x + self.attention(self.norm(x, f"{layer}.input_layernorm.weight"), layer)
            x = x + self.mlp(self.norm(x, f"{layer}.post_attention_layernorm.weight"), layer)
        head = embedding if self.config.get("tie_word_embeddings") else self.weight("lm_head.weight")
        return self.norm(x[first:], "model.norm.weight") @ head.T


def run(program, *arguments, text=""):
    return subprocess.run([str(rig.BUILD / "daemon" / program), *arguments], input=text, capture_output=True, text=True,
                          check=True, timeout=10 * rig.PATIENCE).stdout


def tokenize(text, *options):
    return run("mimeo-tokenize", "--tokenizer", str(folder), *options, text=text)


def encode_all():
    chats = [json.dumps({"messages": [{"role": "user", "content": q}], "add_generation_prompt": True}) for q in QUESTIONS]
    texts = [tokenize(text) for text in TEXTS] + [tokenize(chat, "--chat", "-") for chat in chats]
    return [list(map(int, text.split())) for text in texts]


def generate(daemon, ids, n=N_TOKENS):
    out = run("mimeo-run", "--socket", str(daemon.socket), "--model", folder.name, "--tokens", ",".join(map(str, ids)),
              "--max-tokens", str(n), "--ids")
    return list(map(int, out.replace(",", " ").split()))


def test_greedy_ids_behind_20_passages_are_those_of_float32_arithmetic():
    """A model that has read a passage three times is sure how it goes on: the reference's best logit leads by 0.96 or
    more, far beyond the rounding of bf16."""
    model = Llama(folder)
    for passage in PASSAGES:
        prompt = list(map(int, tokenize(passage * 3 + " ".join(passage.split(" ")[:8])).split()))
        answer = generate(rig.shared.daemon, prompt, N_SURE)
        best = model.logits(prompt + answer[:-1], len(prompt) - 1).argmax(-1)
        assert best.tolist() == answer, (passage[:40], answer, best.tolist())


def test_greedy_ids_of_20_prompts_are_those_of_float32_arithmetic():
    model, n_equal, n_ids, largest = Llama(folder), 0, 0, 0.0
    prompts = encode_all()
    assert len(prompts) == 20
    for prompt in prompts:
        answer = generate(rig.shared.daemon, prompt)
        assert answer
        logits = model.logits(prompt + answer[:-1], len(prompt) - 1)
        best = logits.argmax(-1)
        short = (logits.max(-1) - logits[range(len(answer)), answer]) / np.abs(logits).max(-1)
        n_equal += best.tolist() == answer
        n_ids += len(answer)
        largest = max(largest, float(short.max()))
        assert short.max() <= TOLERANCE, (prompt[:8], int(short.argmax()), float(short.max()))
    print(f"# {n_equal} of {len(prompts)} answers equal in each of {n_ids} ids; the largest difference is {largest:.2g} of the largest logit")


def test_http_completes_with_the_text_of_the_ids_of_mimeo_run():
    # The second request of a prompt finds it in the prefix cache, which changes the last bits of a GPU's results.
    with rig.Rig(daemon_options=[*OPTIONS, "--deterministic", "yes"], model=folder) as own:
        for prompt in encode_all():
            text = tokenize("\n".join(map(str, generate(own.daemon, prompt))), "--decode", "--skip-special")
            reply = own.server.complete(prompt, max_tokens=N_TOKENS)
            assert reply.status == 200, reply.body
            assert reply.json()["choices"][0]["text"] == text, (prompt[:8], reply.body, text)


def test_capital_of_france():
    reply = rig.shared.server.chat("What is the capital of France?")
    assert reply.json()["choices"][0]["message"]["content"] == "The capital of France is Paris.", reply.body
    assert run("mimeo-run", "--socket", str(rig.shared.daemon.socket), "--chat", "--prompt",
               "What is the capital of France?") == "The capital of France is Paris."


if __name__ == "__main__":
    folder = pathlib.Path(os.environ.get("MIMEO_REFERENCE_MODEL", "/nonexistent"))
    if not (folder / "model.safetensors").exists():
        print("1..0 # SKIP MIMEO_REFERENCE_MODEL names no folder of a model")
        sys.exit(0)
    try:
        import numpy as np
    except ImportError:
        print("1..0 # SKIP no numpy")
        sys.exit(0)
    with rig.Rig(daemon_options=OPTIONS, model=folder) as rig.shared:
        rig.run(sys.modules[__name__], with_shared=False)
