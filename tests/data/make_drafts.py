#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/drafts: a random target, drafts for it, and reference.json beside each draft.

For development only: the tests read what is written here and need none of this. Needs numpy. The
reference is dense arithmetic in float64 on the weights as stored, every position computed from the
whole sequence, without a cache. It is written from the papers' description (EAGLE arXiv:2401.15077,
EAGLE-3 arXiv:2503.01840) and shares nothing with the implementation. A draft is refused if
one of MISTAKES would leave its logits as they are, or if two candidates of its guesses are close.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "drafts")
PROMPT, STEPS, MARGIN, APART = 21, 4, 4e-3, 0.02

TARGET = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=8, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, vocab_size=97, max_position_embeddings=128,
              rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False,
              hidden_act="silu", bos_token_id=1, eos_token_id=2)
DRAFT = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, head_dim=12, vocab_size=97, max_position_embeddings=16,
             rms_norm_eps=1e-3, tie_word_embeddings=False, hidden_act="silu", model_type="llama")
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

# name: (architecture, fields, what the checkpoint has beside the layer, MISTAKES that must show)
DRAFTS = {
    "eagle": ("LlamaForCausalLMEagle", dict(rope_theta=500.0, rope_scaling=LLAMA3),
              ["fc.bias", "copies"], ["fused-swapped", "recurrent-unchanged", "input-normed"]),
    "eagle3": ("LlamaForCausalLMEagle3", dict(draft_vocab_size=61, rope_parameters=dict(
        rope_type="default", rope_theta=2000.0)), ["d2t"],
        ["fused-swapped", "recurrent-unchanged", "recurrent-normed", "features-swapped",
         "features-later", "residual-normed"]),
    "eagle3-own": ("LlamaForCausalLMEagle3", dict(rope_parameters=dict(
        rope_type="linear", rope_theta=1000.0, factor=2.0), attention_bias=True,
        eagle_config=dict(use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=[2, 4, 5])),
        ["embed_tokens.weight"], ["target-embedding", "recurrent-normed"]),
}


# ---- files ----

def to_bf16(x):
    """Rounded to nearest even: what is stored, and as float64."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def save(path, weights):
    """BF16, but for integers (I64) and booleans (BOOL); in the order of names. Returns them as stored."""
    header, data, stored = {"__metadata__": {"format": "pt"}}, b"", {}
    for name in sorted(weights):
        w = weights[name]
        if w.dtype == np.bool_:
            kind, raw, stored[name] = "BOOL", w.astype(np.uint8).tobytes(), w
        elif w.dtype == np.int64:
            kind, raw, stored[name] = "I64", w.tobytes(), w
        else:
            bits, stored[name] = to_bf16(w)
            kind, raw = "BF16", bits.tobytes()
        header[name] = {"dtype": kind, "shape": list(w.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return stored


def save_json(path, name, value, indent=None):
    with open(os.path.join(path, name), "w") as f:
        json.dump(value, f, indent=indent, sort_keys=indent is not None)
        f.write("\n")


# ---- weights ----

def norm(rng, n):
    return 1 + 0.3 * rng.standard_normal(n)


def matrix(rng, rows, cols, gain=1.0):
    return gain * rng.standard_normal((rows, cols)) / np.sqrt(cols)


def layer_weights(rng, c, prefix, cols, norms):
    q, kv = (c[k] * c["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
    h, inner = c["hidden_size"], c["intermediate_size"]
    w = {n + ".weight": norm(rng, h) for n in norms}
    for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
        w[f"self_attn.{name}.weight"] = matrix(rng, rows, cols, 1.5)
        if c.get("attention_bias"):
            w[f"self_attn.{name}.bias"] = 0.5 * rng.standard_normal(rows)
    w["self_attn.o_proj.weight"] = matrix(rng, h, q, 1.5)
    if c.get("attention_bias"):
        w["self_attn.o_proj.bias"] = 0.3 * rng.standard_normal(h)
    for name in ("gate_proj", "up_proj"):
        w[f"mlp.{name}.weight"] = matrix(rng, inner, h, 1.5)
    w["mlp.down_proj.weight"] = matrix(rng, h, inner, 1.5)
    return {f"{prefix}.{name}": value for name, value in w.items()}


def target_weights(rng, c):
    h, vocab = c["hidden_size"], c["vocab_size"]
    w = {"model.embed_tokens.weight": rng.standard_normal((vocab, h)),
         "model.norm.weight": norm(rng, h), "lm_head.weight": matrix(rng, vocab, h)}
    for i in range(c["num_hidden_layers"]):
        w |= layer_weights(rng, c, f"model.layers.{i}", h,
                           ["input_layernorm", "post_attention_layernorm"])
    return w


def draft_weights(rng, c, eagle3, extras):
    h, vocab = c["hidden_size"], c["vocab_size"]
    n = c.get("draft_vocab_size", vocab)
    w = {"fc.weight": matrix(rng, h, (3 if eagle3 else 2) * h)}
    if not eagle3:
        w |= layer_weights(rng, c, "layers.0", h, ["post_attention_layernorm"])
    else:
        w |= layer_weights(rng, c, "midlayer", 2 * h,
                           ["input_layernorm", "hidden_norm", "post_attention_layernorm"])
        w |= {"norm.weight": norm(rng, h), "lm_head.weight": matrix(rng, n, h)}
    if "fc.bias" in extras:
        w["fc.bias"] = 0.5 * rng.standard_normal(h)
    if "copies" in extras:  # as published EAGLE heads have them; nobody is to look at these
        w["embed_tokens.weight"] = rng.standard_normal((vocab, h))
    if "embed_tokens.weight" in extras:
        w["embed_tokens.weight"] = rng.standard_normal((vocab, h))
    if "d2t" in extras:
        ids = np.sort(rng.permutation(vocab)[:n]).astype(np.int64)
        w["d2t"] = ids - np.arange(n, dtype=np.int64)
        w["t2d"] = np.isin(np.arange(vocab), ids)
    return w


# ---- arithmetic ----

def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def frequencies(c):
    settings = dict(c.get("rope_scaling") or c.get("rope_parameters") or {})
    theta, d = settings.get("rope_theta", c.get("rope_theta")), c["head_dim"]
    f = theta ** (-np.arange(0, d, 2) / d)
    kind = settings.get("rope_type", "default")
    if kind == "linear":
        return f / settings["factor"]
    if kind == "llama3":
        waves = settings["original_max_position_embeddings"] * f / (2 * np.pi)
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
        part = np.clip((waves - low) / (high - low), 0, 1)
        return f * part + f / settings["factor"] * (1 - part)
    assert kind == "default"
    return f


def rotate(x, c):
    """x [tokens, heads, dim] at positions 0, 1, ...; pairs (i, i + dim / 2)."""
    angle = np.arange(len(x))[:, None] * frequencies(c)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(x, w, prefix, c):
    def heads(name, n):
        y = x @ w[f"{prefix}.self_attn.{name}.weight"].T
        y = y + w.get(f"{prefix}.self_attn.{name}.bias", 0)
        return y.reshape(len(x), n, c["head_dim"])

    n, kv = c["num_attention_heads"], c["num_key_value_heads"]
    q, k, v = rotate(heads("q_proj", n), c), rotate(heads("k_proj", kv), c), heads("v_proj", kv)
    k, v = (np.repeat(t, n // kv, axis=1) for t in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(c["head_dim"])
    scores = np.where(np.tril(np.ones((len(x), len(x)), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("hij,jhd->ihd", p, v).reshape(len(x), -1)
    return out @ w[f"{prefix}.self_attn.o_proj.weight"].T + w.get(
        f"{prefix}.self_attn.o_proj.bias", 0)


def mlp(x, w, prefix):
    gate, up = (x @ w[f"{prefix}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    return gate / (1 + np.exp(-gate)) * up @ w[f"{prefix}.mlp.down_proj.weight"].T


def run_target(ids, w, c):
    """Logits, hidden states after the final norm, and the residual at each layer's input and the end."""
    x, eps, inputs = w["model.embed_tokens.weight"][ids], c["rms_norm_eps"], []
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        inputs.append(x)
        x = x + attention(rms(x, w[p + ".input_layernorm.weight"], eps), w, p, c)
        x = x + mlp(rms(x, w[p + ".post_attention_layernorm.weight"], eps), w, p)
    hidden = rms(x, w["model.norm.weight"], eps)
    return hidden @ w["lm_head.weight"].T, hidden, inputs + [x]


def halves(a, b, mistake):
    return np.concatenate([b, a] if mistake == "fused-swapped" else [a, b], axis=-1)


class Draft:
    def __init__(self, c, w, target, mistake=None):
        self.c, self.w, self.target, self.mistake = c, w, target, mistake
        self.eagle3 = "norm.weight" in w
        own = self.eagle3 and "embed_tokens.weight" in w and mistake != "target-embedding"
        self.table = w["embed_tokens.weight"] if own else target["model.embed_tokens.weight"]

    def conditions(self, hidden, inputs):
        """What the positions that the target has seen are conditioned on."""
        if not self.eagle3:
            return hidden
        n = len(inputs) - 1
        layers = [2, n // 2, n - 3]
        if self.mistake == "features-swapped":
            layers.reverse()
        if self.mistake == "features-later":
            layers = [i + 1 for i in layers]
        return np.concatenate([inputs[i] for i in layers], axis=-1) @ self.w["fc.weight"].T

    def layer(self, ids, conditions):
        """Logits and outputs of all positions: ids are the next tokens'."""
        w, eps, e = self.w, self.c["rms_norm_eps"], self.table[ids]
        p = "midlayer" if self.eagle3 else "layers.0"
        if self.eagle3:
            normed = rms(conditions, w[p + ".hidden_norm.weight"], eps)
            x = normed if self.mistake == "residual-normed" else conditions
            x = x + attention(halves(rms(e, w[p + ".input_layernorm.weight"], eps), normed,
                                     self.mistake), w, p, self.c)
        else:
            x = halves(e, conditions, self.mistake) @ w["fc.weight"].T + w.get("fc.bias", 0)
            y = rms(x, 1, eps) if self.mistake == "input-normed" else x
            x = x + attention(y, w, p, self.c)
        x = x + mlp(rms(x, w[p + ".post_attention_layernorm.weight"], eps), w, p)
        if not self.eagle3:
            return x @ self.target["lm_head.weight"].T, x
        normed = rms(x, w["norm.weight"], eps)
        return normed @ w["lm_head.weight"].T, normed if self.mistake == "recurrent-normed" else x

    def run(self, ids, hidden, inputs):
        """ids: one more than the target's. Logits of its positions, then of STEPS guesses, each appended
        with the output before it as its condition."""
        ids, conditions = list(ids[1:]), self.conditions(hidden, inputs)
        logits, outputs = self.layer(ids, conditions)
        rows, guesses = list(logits), []
        for _ in range(STEPS):
            guess = int(np.argmax(rows[-1]))
            guesses.append(guess + int(self.w["d2t"][guess]) if "d2t" in self.w else guess)
            ids.append(guesses[-1])
            last = conditions[-1:] if self.mistake == "recurrent-unchanged" else outputs[-1:]
            conditions = np.concatenate([conditions, last])
            logits, outputs = self.layer(ids, conditions)
            rows.append(logits[-1])
        return np.array(rows), guesses


# ---- cases ----

def short(row):
    return [float(f"{x:.8g}") for x in row]


def close(rows):
    top = np.sort(rows, axis=-1)[:, -2:]
    return float(((top[:, 1] - top[:, 0]) / np.abs(rows).max(-1)).min())


def save_reference(path, seed, ids, logits, mistakes, run):
    """reference.json of run(None), the draft's rows and guesses. False: margins are narrow. Each mistake must show."""
    name, (rows, guesses) = os.path.basename(path), run(None)
    if close(rows[PROMPT - 1:]) < MARGIN or len(set(guesses)) < 3:
        return False
    right = rows[[PROMPT - 1, PROMPT]]
    for mistake in mistakes:
        other = run(mistake)[0][[PROMPT - 1, PROMPT]]
        apart = float(np.abs(other - right).max() / np.abs(right).max())
        print(f"{name}: seed {seed}: {mistake}: {apart:.3f} apart")
        if apart < APART:
            sys.exit(f"{name}: {mistake} does not show")
    save_json(path, "reference.json", {
        "source": f"{os.path.basename(sys.argv[0])}: numpy, float64 on the stored weights", "ids": ids,
        "target_logits_last": short(logits[-1]), "guesses": guesses,
        "logits": [{"position": i, "row": short(rows[i])}
                   for i in [0, PROMPT // 2, *range(PROMPT - 1, PROMPT + STEPS)]]})
    return True


def make_target():
    path, rng = os.path.join(OUT, "target"), np.random.default_rng(1)
    os.makedirs(path)
    stored = save(path, target_weights(rng, TARGET))
    save_json(path, "config.json", TARGET | dict(architectures=["LlamaForCausalLM"],
                                                 model_type="llama", torch_dtype="bfloat16"), 2)
    return stored


def make_draft(name, seed, target):
    architecture, fields, extras, mistakes = DRAFTS[name]
    path, c = os.path.join(OUT, name), DRAFT | fields
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    rng = np.random.default_rng(seed)
    w = save(path, draft_weights(rng, c, architecture.endswith("3"), extras))
    save_json(path, "config.json", c | dict(architectures=[architecture], torch_dtype="bfloat16"), 2)
    ids = [int(i) for i in rng.integers(0, TARGET["vocab_size"], PROMPT + 1)]
    logits, hidden, inputs = run_target(ids[:-1], target, TARGET)
    return save_reference(path, seed, ids, logits, mistakes,
                          lambda mistake: Draft(c, w, target, mistake).run(ids, hidden, inputs))


if __name__ == "__main__":
    shutil.rmtree(os.path.join(OUT, "target"), ignore_errors=True)
    weights = make_target()
    for name in DRAFTS:
        if not any(make_draft(name, seed, weights) for seed in range(10, 60)):
            sys.exit(f"{name}: no seed has wide margins")
    for name in os.listdir(OUT):
        print(name, sum(os.path.getsize(os.path.join(OUT, name, f))
                        for f in os.listdir(os.path.join(OUT, name))))
