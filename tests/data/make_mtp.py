#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/drafts/mtp: a random DeepSeek V3 with its MTP head in one directory, and reference.json.

For development only, like make_drafts.py, whose terms it shares: numpy, float64 on the weights as stored,
without a cache. It is written from the papers (DeepSeek-V2 arXiv:2405.04434, V3 arXiv:2412.19437).
"""
import os
import shutil
import sys

import numpy as np

from make_drafts import OUT, PROMPT, STEPS, halves, matrix, norm, rms, save, save_json, save_reference

CONFIG = dict(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", torch_dtype="bfloat16",
              hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=4, vocab_size=97, max_position_embeddings=128, rms_norm_eps=1e-3,
              rope_theta=1000.0, rope_scaling=None, tie_word_embeddings=False, hidden_act="silu",
              bos_token_id=1, eos_token_id=2, q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12,
              qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=8, num_experts_per_tok=3,
              n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1, moe_layer_freq=1,
              n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid",
              topk_method="noaux_tc", num_nextn_predict_layers=1, rope_interleave=True)
MISTAKES = ["fused-swapped", "embedding-not-normed", "hidden-not-normed", "state-before-norm",
            "output-before-norm", "recurrent-unchanged", "copies"]
LATENT_EPS = 1e-6


# ---- weights ----

def layer_weights(rng, c, prefix, experts):
    h, n, q = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"]
    rank, nope, rope, v = (c[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    w = {"input_layernorm.weight": norm(rng, h), "post_attention_layernorm.weight": norm(rng, h),
         "self_attn.q_a_proj.weight": matrix(rng, q, h), "self_attn.q_a_layernorm.weight": norm(rng, q),
         "self_attn.q_b_proj.weight": matrix(rng, n * (nope + rope), q, 1.5),
         "self_attn.kv_a_proj_with_mqa.weight": matrix(rng, rank + rope, h, 1.5),
         "self_attn.kv_a_layernorm.weight": norm(rng, rank),
         "self_attn.kv_b_proj.weight": matrix(rng, n * (nope + v), rank, 1.5),
         "self_attn.o_proj.weight": matrix(rng, h, n * v, 1.5)}
    mlps = {"mlp": c["intermediate_size"]}
    if experts:
        w["mlp.gate.weight"] = matrix(rng, c["n_routed_experts"], h, 2.0)
        w["mlp.gate.e_score_correction_bias"] = 0.1 * rng.standard_normal(c["n_routed_experts"])
        names = [f"mlp.experts.{i}" for i in range(c["n_routed_experts"])] + ["mlp.shared_experts"]
        mlps = {name: c["moe_intermediate_size"] for name in names}
    for name, inner in mlps.items():
        w[name + ".gate_proj.weight"], w[name + ".up_proj.weight"] = (matrix(rng, inner, h, 1.5) for _ in range(2))
        w[name + ".down_proj.weight"] = matrix(rng, h, inner, 1.5)
    return {f"{prefix}.{name}": value for name, value in w.items()}


def model_weights(rng, c):
    h, vocab, n = c["hidden_size"], c["vocab_size"], c["num_hidden_layers"]
    w = {"model.embed_tokens.weight": rng.standard_normal((vocab, h)), "model.norm.weight": norm(rng, h),
         "lm_head.weight": matrix(rng, vocab, h)}
    for i in range(n + 1):
        w |= layer_weights(rng, c, f"model.layers.{i}", i >= c["first_k_dense_replace"])
    p = f"model.layers.{n}"
    w |= {p + ".enorm.weight": norm(rng, h), p + ".hnorm.weight": norm(rng, h),
          p + ".eh_proj.weight": matrix(rng, h, 2 * h), p + ".shared_head.norm.weight": norm(rng, h),
          # published files repeat embedding and head here; nobody is to look at these
          p + ".embed_tokens.weight": rng.standard_normal((vocab, h)),
          p + ".shared_head.head.weight": matrix(rng, vocab, h)}
    return w


# ---- arithmetic ----

def rotate(x, c):
    """x [tokens, heads, dim] at positions 0, 1, ...; pairs (2i, 2i + 1)."""
    d = c["qk_rope_head_dim"]
    angle = np.arange(len(x))[:, None] * c["rope_theta"] ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def attention(x, w, p, c):
    n, rank, nope = c["num_attention_heads"], c["kv_lora_rank"], c["qk_nope_head_dim"]
    a = p + ".self_attn."
    q = rms(x @ w[a + "q_a_proj.weight"].T, w[a + "q_a_layernorm.weight"], LATENT_EPS)
    q = (q @ w[a + "q_b_proj.weight"].T).reshape(len(x), n, -1)
    row = x @ w[a + "kv_a_proj_with_mqa.weight"].T
    latent = rms(row[:, :rank], w[a + "kv_a_layernorm.weight"], LATENT_EPS)
    kv = (latent @ w[a + "kv_b_proj.weight"].T).reshape(len(x), n, -1)
    key = np.repeat(rotate(row[:, None, rank:], c), n, axis=1)
    scores = np.einsum("ihd,jhd->hij", q[..., :nope], kv[..., :nope])
    scores += np.einsum("ihd,jhd->hij", rotate(q[..., nope:], c), key)
    scores /= np.sqrt(nope + c["qk_rope_head_dim"])
    scores = np.where(np.tril(np.ones((len(x), len(x)), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("hij,jhd->ihd", weights, kv[..., nope:]).reshape(len(x), -1)
    return out @ w[a + "o_proj.weight"].T


def mlp(x, w, prefix):
    gate, up = (x @ w[f"{prefix}.{name}_proj.weight"].T for name in ("gate", "up"))
    return gate / (1 + np.exp(-gate)) * up @ w[prefix + ".down_proj.weight"].T


def experts(x, w, p, c):
    out = mlp(x, w, p + ".mlp.shared_experts")
    scores = 1 / (1 + np.exp(-x @ w[p + ".mlp.gate.weight"].T))
    for t, own in enumerate(scores):
        groups = (own + w[p + ".mlp.gate.e_score_correction_bias"]).reshape(c["n_group"], -1)
        best = np.argsort(-np.sort(groups)[:, -2:].sum(-1))[:c["topk_group"]]
        choice = np.full(groups.shape, -np.inf)
        choice[best] = groups[best]
        chosen = np.argsort(-choice.ravel())[:c["num_experts_per_tok"]]
        for e in chosen:
            share = c["routed_scaling_factor"] * own[e] / own[chosen].sum()
            out[t] += share * mlp(x[t:t + 1], w, f"{p}.mlp.experts.{e}")[0]
    return out


def layer(x, w, i, c):
    p, eps = f"model.layers.{i}", c["rms_norm_eps"]
    x = x + attention(rms(x, w[p + ".input_layernorm.weight"], eps), w, p, c)
    y = rms(x, w[p + ".post_attention_layernorm.weight"], eps)
    return x + (experts(y, w, p, c) if i >= c["first_k_dense_replace"] else mlp(y, w, p + ".mlp"))


def run_target(ids, w, c):
    """Logits, and states before and after the final norm."""
    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        x = layer(x, w, i, c)
    hidden = rms(x, w["model.norm.weight"], c["rms_norm_eps"])
    return hidden @ w["lm_head.weight"].T, x, hidden


def run_head(ids, hidden, w, c, mistake):
    """Logits and outputs of all positions: ids are the next tokens'."""
    p, eps = f"model.layers.{c['num_hidden_layers']}", c["rms_norm_eps"]
    copies = mistake == "copies"
    e = w[p + ".embed_tokens.weight" if copies else "model.embed_tokens.weight"][ids]
    if mistake != "embedding-not-normed":
        e = rms(e, w[p + ".enorm.weight"], eps)
    if mistake != "hidden-not-normed":
        hidden = rms(hidden, w[p + ".hnorm.weight"], eps)
    x = layer(halves(e, hidden, mistake) @ w[p + ".eh_proj.weight"].T, w, c["num_hidden_layers"], c)
    normed = rms(x, w[p + ".shared_head.norm.weight"], eps)
    logits = normed @ w[p + ".shared_head.head.weight" if copies else "lm_head.weight"].T
    return logits, x if mistake == "output-before-norm" else normed


def run(ids, w, c, mistake=None):
    """ids: one more than the target's. Logits of the head's positions, then of STEPS guesses."""
    _, before, hidden = run_target(ids[:-1], w, c)
    ids, states = list(ids[1:]), before if mistake == "state-before-norm" else hidden
    logits, outputs = run_head(ids, states, w, c, mistake)
    rows, guesses = list(logits), []
    for _ in range(STEPS):
        guesses.append(int(np.argmax(rows[-1])))
        ids.append(guesses[-1])
        last = states[-1:] if mistake == "recurrent-unchanged" else outputs[-1:]
        states = np.concatenate([states, last])
        logits, outputs = run_head(ids, states, w, c, mistake)
        rows.append(logits[-1])
    return np.array(rows), guesses


def make(seed):
    path, rng = os.path.join(OUT, "mtp"), np.random.default_rng(seed)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    w = save(path, model_weights(rng, CONFIG))
    save_json(path, "config.json", CONFIG, 2)
    ids = [int(i) for i in rng.integers(0, CONFIG["vocab_size"], PROMPT + 1)]
    logits = run_target(ids[:-1], w, CONFIG)[0]
    return save_reference(path, seed, ids, logits, MISTAKES, lambda mistake: run(ids, w, CONFIG, mistake))


if __name__ == "__main__":
    if not any(make(seed) for seed in range(10, 60)):
        sys.exit("mtp: no seed has wide margins")
