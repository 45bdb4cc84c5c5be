#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/gguf: blocks.gguf, and small models with their reference logits.

For development only. Needs PyPI's gguf and numpy, torch and transformers (written with gguf 0.19 and
transformers 5.24). Tensors of the K types, which the gguf package does not quantise, are random blocks.
The reference of a model is float32 arithmetic of transformers on the weights as gguf dequantises them.
"""
import json
import os
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

import make_checkpoints as checkpoints

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "gguf")
PROMPT = 40

# Where the float16 scales of a block are, in bytes, and what they are multiplied by.
SCALES = {Type.Q4_0: {0: 1}, Type.Q4_1: {0: 1, 2: 7}, Type.Q5_0: {0: 1}, Type.Q5_1: {0: 1, 2: 15}, Type.Q8_0: {0: 1},
          Type.Q4_K: {0: 1, 2: 7.5}, Type.Q5_K: {0: 1, 2: 15.5}, Type.Q6_K: {208: 1}}


def random_blocks(rng, kind, rows, cols, spread):
    """Rows of blocks of random bits, whose values have that standard deviation."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    scale = rng.uniform(0.5, 1, (rows, cols // elements)) * rng.choice([-1, 1], (rows, cols // elements))

    def put(factor):
        for at, more in SCALES[kind].items():
            data[:, :, at:at + 2] = (scale * factor * more).astype(np.float16)[:, :, None].view(np.uint8)
        return dequantize(data.reshape(rows, -1), kind)

    put(spread / put(1 / 64).std() / 64)
    return data.reshape(rows, -1)


def blocks():
    """A tensor of each type and, beside it, what gguf makes of it."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(os.path.join(OUT, "blocks.gguf"), "blocks")
    for kind in SCALES:
        cols = max(gguf.GGML_QUANT_SIZES[kind][0], 64)
        data = random_blocks(rng, kind, 3, cols, 1.0)
        # a zero and a subnormal scale
        for at in SCALES[kind]:
            data[1, at:at + 2] = 0
            data[2, at:at + 2] = [0x55, 0x80]
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        writer.add_tensor(kind.name + ".f32", dequantize(data, kind).astype(np.float32))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SIZES = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=96, max_position_embeddings=256)
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight"}

# name: (class, fields, types by part of the name, what to switch off)
MODELS = {
    "llama": (LlamaConfig, dict(rope_parameters=checkpoints.LLAMA3, eos_token_id=2),
              {"attn_q.": Type.Q8_0, "attn_k.": Type.Q5_1, "attn_v.": Type.F16, "attn_output": Type.Q4_1,
               "ffn_gate": Type.Q8_0, "ffn_up": Type.Q4_0, "ffn_down": Type.Q5_0, "token_embd": Type.Q8_0,
               "output.": Type.BF16}, dict(rope_parameters=checkpoints.rope("default"))),
    "llama-bias": (LlamaConfig, dict(num_hidden_layers=1, attention_bias=True, mlp_bias=True, head_dim=32,
                                       vocab_size=64, rope_parameters=checkpoints.rope("linear", factor=3.0)),
                     {"attn_q.": Type.F16, "attn_k.": Type.F32, "": Type.Q4_0},
                     dict(rope_parameters=checkpoints.rope("default"))),
    "qwen2": (Qwen2Config, dict(num_hidden_layers=1, rope_parameters=checkpoints.YARN), {"": Type.Q8_0},
              dict(rope_parameters=checkpoints.rope("default"))),
    "qwen3": (Qwen3Config, dict(hidden_size=256, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
                                head_dim=16, vocab_size=64, tie_word_embeddings=True,
                                rope_parameters=checkpoints.rope("default") | {"rope_theta": 1e6}),
              {"attn_q.": Type.Q4_K, "attn_k.": Type.Q5_K, "attn_v.": Type.Q6_K, "attn_output": Type.Q8_0,
               "ffn_gate": Type.Q4_K, "ffn_up": Type.Q6_K, "ffn_down": Type.Q4_0, "token_embd": Type.Q6_K},
              dict(rope_parameters=checkpoints.rope("default"))),
}


def gguf_name(name):
    if name in ENDS:
        return ENDS[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.{kind}"


def pairs(w, dim):
    """Rows of halves as rows of pairs."""
    return w.reshape(-1, 2, dim // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def halves(w, dim):
    return w.reshape(-1, dim // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def store(writer, rng, name, w, types, dim, rotated):
    """Write a weight and return what the file has of it."""
    theirs = gguf_name(name)
    kind = next(k for part, k in types.items() if part in theirs) if w.ndim == 2 else Type.F32
    w = pairs(w, dim) if rotated else w
    if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        data = random_blocks(rng, kind, *w.shape, w.std())
    else:
        data = quantize(w, kind)
    w = dequantize(data, kind).astype(np.float32)
    plain = {Type.F32: np.float32, Type.F16: np.float16}.get(kind)
    writer.add_tensor(theirs, data.astype(plain) if plain else data, raw_dtype=kind)
    return halves(w, dim) if rotated else w


def metadata(writer, arch, c):
    dim = c.head_dim
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(dim)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    kind = c.rope_parameters["rope_type"]
    if kind == "llama3":
        inv = AutoModelForCausalLM.from_config(c).model.rotary_emb.inv_freq.numpy()
        plain = c.rope_parameters["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
        writer.add_tensor("rope_freqs.weight", (plain / inv).astype(np.float32))
    elif kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(c.rope_parameters["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(c.rope_parameters["original_max_position_embeddings"])


@torch.no_grad()
def reference(path, model, off_model, prompt):
    logits = checkpoints.logits_of(model, prompt)
    ids, last = list(prompt), logits[-1]
    top2 = logits.topk(2, dim=-1).values
    margin = float(((top2[:, 0] - top2[:, 1]) / logits.abs().max(dim=-1).values).min())
    for _ in range(checkpoints.STEPS):
        row = checkpoints.logits_of(model, ids)[-1]
        top = row.topk(2).values
        margin = min(margin, float((top[0] - top[1]) / row.abs().max()))
        ids.append(int(row.argmax()))
    apart = float((checkpoints.logits_of(off_model, prompt)[-1] - last).abs().max() / last.abs().max())
    print(f"{path}: margin {margin:.4f} apart {apart:.4f} distinct {len(set(ids[len(prompt):]))}")
    if margin < checkpoints.MARGIN or apart < 0.02 or len(set(ids[len(prompt):])) < 4:
        return False
    with open(path, "w") as f:
        json.dump({"source": f"transformers {transformers.__version__}, float32 on the dequantised weights",
                   "cases": [{"prompt": prompt, "logits_last": [float(f"{x:.8g}") for x in last.tolist()],
                              "argmax_per_position": logits.argmax(-1).tolist(),
                              "greedy": ids[len(prompt):]}]}, f)
        f.write("\n")
    return True


def make_once(name, seed):
    cls, fields, types, off = MODELS[name]
    fields = SIZES | dict(rope_parameters=checkpoints.rope("default")) | fields
    config = cls(**fields)
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    arch = name.split("-")[0]
    path = os.path.join(OUT, name + ".gguf")
    rng = np.random.default_rng(seed)
    build = lambda c: AutoModelForCausalLM.from_config(c, attn_implementation="eager", dtype=torch.float32).eval()
    model, other = build(config), build(cls(**(fields | off)))
    checkpoints.randomise(model, seed)
    model.tie_weights()
    writer = gguf.GGUFWriter(path, arch)
    metadata(writer, arch, config)
    if name == "llama-bias":  # a tokenizer that is not read
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("tekken")
    weights = {}
    for key, w in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rotated = arch == "llama" and any(part in key for part in ("q_proj", "k_proj"))
        weights[key] = torch.from_numpy(store(writer, rng, key, w.numpy(), types, config.head_dim, rotated).copy())
    finish(writer)
    for m in (model, other):
        m.load_state_dict(weights, strict=False)
        m.tie_weights()
    prompt = rng.integers(0, config.vocab_size, PROMPT).tolist()
    return reference(path.replace(".gguf", ".gguf.json"), model, other, prompt)


def make(name):
    for seed in range(200):
        if make_once(name, seed):
            return
    sys.exit(f"{name}: no seed has wide margins")


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    blocks()
    for model_name in MODELS:
        make(model_name)
