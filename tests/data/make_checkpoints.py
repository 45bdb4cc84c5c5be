#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the checkpoints of tests/data/checkpoints and tests/data/rope.json.

For development only: the tests read what is written here and need none of this. Needs torch and
transformers (written with transformers 5.23). Random weights from fixed seeds; the reference is
float32 arithmetic on the weights as stored. A checkpoint is refused if switching its particular
feature off would leave the logits as they are, or if two candidates of its greedy text are close.
"""
import json
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, Gemma2Config, Gemma3TextConfig,
                          LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config, Qwen3MoeConfig)

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "checkpoints")
STEPS = 16
MARGIN = 2e-3

SIZES = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=199, max_position_embeddings=256)


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=10000.0, **more)


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)

# Latent attention and experts; the dimensions all differ, so that none can stand for another.
LATENT = dict(num_key_value_heads=4, num_hidden_layers=3, kv_lora_rank=24, q_lora_rank=20,
              qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=8,
              num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16,
              first_k_dense_replace=1)

# Experts beside plain attention.
MOE = dict(head_dim=16, num_hidden_layers=3, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24)

WIDE = dict(hidden_size=64, num_key_value_heads=1)
LONGROPE = rope("longrope")


def factors(n, first, step):
    return dict(short_factor=[first + step * i for i in range(n)],
                long_factor=[2 * first + 3 * step * i for i in range(n)])


LINEAR = rope("linear", factor=4.0) | {"rope_theta": 5000.0}


def by_layer_type(local_theta, full):
    return {"full_attention": full, "sliding_attention": rope("default") | {"rope_theta": local_theta}}


# name: (class, sizes and fields, what to switch off, how to write config.json, prompt length, dtypes)
CASES = {
    "llama-old-rope-theta": (LlamaConfig, dict(rope_parameters=rope("default") | {"rope_theta": 500.0}),
                             dict(rope_parameters=rope("default")), "old", 23, "bf16"),
    "llama-rope-linear": (LlamaConfig, dict(rope_parameters=rope("linear", factor=3.0)),
                          dict(rope_parameters=rope("default")), "old-type", 40, "bf16"),
    "llama-rope-llama3": (LlamaConfig, dict(rope_parameters=LLAMA3, tie_word_embeddings=True,
                                            eos_token_id=[2, 198]),
                          dict(rope_parameters=rope("default")), "old", 60, "bf16"),
    "llama-rope-yarn": (LlamaConfig, dict(rope_parameters=YARN),
                        dict(rope_parameters=YARN | {"attention_factor": 1.0}), "new", 60, "bf16"),
    "llama-rope-yarn-mscale": (LlamaConfig, dict(head_dim=16, rope_parameters=YARN | dict(
        factor=6.0, beta_fast=16.0, beta_slow=2.0, mscale=1.2, mscale_all_dim=0.7,
        truncate=False)), dict(rope_parameters=YARN), "new", 50, "bf16"),
    "llama-head-dim": (LlamaConfig, dict(head_dim=32, num_hidden_layers=3), None, "new", 17, "bf16"),
    "llama-tied": (LlamaConfig, dict(tie_word_embeddings=True, num_key_value_heads=4), None, "old",
                   12, "bf16"),
    "llama-bias": (LlamaConfig, dict(attention_bias=True, mlp_bias=True), None, "new", 20, "bf16"),
    "mistral-window": (MistralConfig, dict(sliding_window=9), dict(sliding_window=None), "new", 48,
                       "bf16"),
    "mistral-no-window": (MistralConfig, dict(sliding_window=None, head_dim=16),
                          dict(sliding_window=9), "old", 48, "bf16"),
    "qwen2": (Qwen2Config, dict(rms_norm_eps=1e-5), None, "old", 31, "bf16"),
    "qwen2-window": (Qwen2Config, dict(num_hidden_layers=3, use_sliding_window=True,
                                       sliding_window=7, max_window_layers=1),
                     dict(layer_types=["full_attention"] * 2 + ["sliding_attention"]), "layers", 44, "bf16"),
    "qwen3": (Qwen3Config, dict(head_dim=16, tie_word_embeddings=True), None, "new", 29, "bf16"),
    "qwen3-bias-window": (Qwen3Config, dict(head_dim=16, attention_bias=True, num_hidden_layers=3,
                                            use_sliding_window=True, sliding_window=6,
                                            layer_types=["sliding_attention", "full_attention",
                                                         "sliding_attention"]),
                          dict(layer_types=["full_attention"] * 3), "new", 37, "bf16"),
    "llama-sharded": (LlamaConfig, dict(num_hidden_layers=3, num_key_value_heads=1), None, "new", 5,
                      "sharded"),
    "llama-f16": (LlamaConfig, dict(), None, "old", 26, "f16"),
    "llama-f32": (LlamaConfig, dict(hidden_size=40, intermediate_size=72), None, "new", 33, "f32"),
    "qwen2-mixed": (Qwen2Config, dict(num_key_value_heads=4), None, "new", 19, "mixed"),
    "deepseek-v2": (DeepseekV2Config, LATENT | dict(attention_bias=True, mlp_bias=True,
                                                    routed_scaling_factor=1.7),
                    dict(routed_scaling_factor=1.0), "new", 30, "bf16"),
    "deepseek-v2-groups": (DeepseekV2Config, LATENT | dict(
        q_lora_rank=None, n_shared_experts=1, topk_method="group_limited_greedy", n_group=4,
        topk_group=2, routed_scaling_factor=16.0, rms_norm_eps=1e-3),
        dict(topk_method="greedy"), "old", 27, "bf16"),
    "deepseek-v2-yarn": (DeepseekV2Config, LATENT | dict(
        first_k_dense_replace=3, rope_parameters=YARN | dict(factor=8.0, mscale=0.707,
                                                             mscale_all_dim=1.3)),
        dict(rope_parameters=YARN | dict(factor=8.0)), "old-type", 60, "bf16"),
    "deepseek-v3": (DeepseekV3Config, LATENT | dict(
        n_group=4, topk_group=2, rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0)),
        dict(topk_group=4), "old-type", 45, "bf16"),
    "deepseek-v3-halves": (DeepseekV3Config, LATENT | dict(
        q_lora_rank=None, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=False,
        routed_scaling_factor=1.0, rope_interleave=False), dict(rope_interleave=True), "new", 33,
        "bf16"),
    "qwen3-moe": (Qwen3MoeConfig, MOE | dict(norm_topk_prob=True, mlp_only_layers=[1]),
                  dict(norm_topk_prob=False), "new", 34, "bf16"),
    "qwen3-moe-step": (Qwen3MoeConfig, MOE | dict(
        num_hidden_layers=4, decoder_sparse_step=2, attention_bias=True, use_sliding_window=True,
        sliding_window=8, tie_word_embeddings=True), dict(sliding_window=None), "old", 41, "bf16"),
    "phi3-window": (Phi3Config, dict(sliding_window=9), dict(sliding_window=None), "new", 35, "bf16"),
    "phi3-short": (Phi3Config, WIDE | dict(
        max_position_embeddings=1024, original_max_position_embeddings=256, tie_word_embeddings=True,
        rope_parameters=LONGROPE | dict(partial_rotary_factor=0.75, **factors(6, 1.0, 0.3))),
        dict(original_max_position_embeddings=8), "new", 36, "f16"),
    "phi3-long": (Phi3Config, WIDE | dict(
        max_position_embeddings=512, original_max_position_embeddings=16,
        rope_parameters=LONGROPE | dict(partial_rotary_factor=0.25, **factors(2, 0.4, 0.5))),
        dict(original_max_position_embeddings=4096), "old-type", 42, "bf16"),
    "qwen3-embedding": (Qwen3Config, dict(head_dim=16, tie_word_embeddings=True), None, "new", 28, "inner"),
    "gemma2": (Gemma2Config, dict(head_dim=16, num_hidden_layers=3, sliding_window=9, query_pre_attn_scalar=20,
                                  attn_logit_softcapping=2.0, final_logit_softcapping=1.5,
                                  tie_word_embeddings=False),
               dict(attn_logit_softcapping=None), "new", 39, "bf16"),
    "gemma2-types": (Gemma2Config, dict(head_dim=16, attention_bias=True, sliding_window=6, query_pre_attn_scalar=16,
                                        layer_types=["full_attention", "sliding_attention"],
                                        attn_logit_softcapping=None, final_logit_softcapping=None),
                     dict(layer_types=["full_attention"] * 2), "new", 32, "bf16"),
    "gemma3": (Gemma3TextConfig, dict(head_dim=16, num_hidden_layers=4, sliding_window=9, sliding_window_pattern=3,
                                      query_pre_attn_scalar=20, rope_parameters=by_layer_type(100.0, LINEAR)),
               dict(rope_parameters=by_layer_type(5000.0, LINEAR)), "old-types", 41, "bf16"),
    "gemma3-types": (Gemma3TextConfig, dict(head_dim=24, num_hidden_layers=3, attention_bias=True, sliding_window=7,
                                            final_logit_softcapping=4.0, tie_word_embeddings=False,
                                            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                            rope_parameters=by_layer_type(500.0, rope("default"))),
                     dict(final_logit_softcapping=None), "new", 38, "bf16"),
}

GEMMA = ("gemma2", "gemma3_text")
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def randomise(model, seed):
    gen = torch.Generator().manual_seed(seed)
    is_gemma = model.config.model_type in GEMMA  # norms add 1, embeddings are scaled
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=gen)
        if "norm" in name:
            p.data = (0 if is_gemma else 1) + 0.3 * noise
        elif name.endswith("bias"):
            p.data = 0.5 * noise
        elif "embed_tokens" in name:
            p.data = 0.4 * noise / (model.config.hidden_size ** 0.5 if is_gemma else 1)
        elif "q_proj" in name or "k_proj" in name or name.endswith("mlp.gate.weight"):
            p.data = 0.3 * noise
        else:
            p.data = 0.2 * noise
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = 0.4 * torch.randn(b.shape, generator=gen)


def rewrite_config(path, style):
    with open(path) as f:
        config = json.load(f)
    if style in ("old", "old-type"):
        params = config.pop("rope_parameters")
        config["rope_theta"] = params.pop("rope_theta")
        if style == "old-type":
            params["type"] = params.pop("rope_type")
        if config["model_type"] == "phi3":
            config["partial_rotary_factor"] = params.pop("partial_rotary_factor")
            del params["original_max_position_embeddings"]
        config["rope_scaling"] = None if params.get("rope_type") == "default" else params
        config["torch_dtype"] = config.pop("dtype", "bfloat16")
        if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
            del config["head_dim"]
        if "num_local_experts" in config:
            config["num_experts"] = config.pop("num_local_experts")
    elif style == "old-types":
        params = config.pop("rope_parameters")
        config["rope_local_base_freq"] = params["sliding_attention"]["rope_theta"]
        config["rope_theta"] = params["full_attention"].pop("rope_theta")
        config["rope_scaling"] = params["full_attention"]
        config["sliding_window_pattern"] = config["layer_types"].index("full_attention") + 1
        del config["layer_types"]
    elif style == "layers":
        del config["layer_types"]
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def dtype_of(kind, name):
    if name.endswith("e_score_correction_bias"):
        return torch.float32
    if kind != "mixed":
        return TORCH.get(kind, torch.bfloat16)
    if "q_proj" in name or "layernorm" in name:
        return torch.float32
    return torch.float16 if "k_proj" in name or "up_proj" in name else torch.bfloat16


def store(path, kind):
    file = os.path.join(path, "model.safetensors")
    tensors = {k: v.to(dtype_of(kind, k)).contiguous() for k, v in load_file(file).items()}
    if kind == "inner":
        tensors = {k.removeprefix("model."): v for k, v in tensors.items() if k != "lm_head.weight"}
    if kind != "sharded":
        save_file(tensors, file, metadata={"format": "pt"})
        return
    os.unlink(file)
    names, n, where = sorted(tensors), 3, {}
    for i in range(n):
        shard = f"model-{i + 1:05}-of-{n:05}.safetensors"
        part = names[i::n]
        save_file({k: tensors[k] for k in part}, os.path.join(path, shard), metadata={"format": "pt"})
        where |= {k: shard for k in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f, indent=1)
        f.write("\n")


def load(path, **change):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                 attn_implementation="eager", **change)
    if model.config.model_type in GEMMA:  # in the dtype of the stored embeddings
        scale = model.model.embed_tokens.embed_scale
        scale.copy_(scale.to(torch.bfloat16))
    return model.eval()


def numbers(row):
    return [float(f"{x:.8g}") for x in row.tolist()]


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def reference(name, path, off, n_prompt, seed, kind="bf16"):
    model = load(path)
    gen = torch.Generator().manual_seed(seed + 1)
    vocab = model.config.vocab_size
    prompt = torch.randint(0, vocab, (n_prompt,), generator=gen).tolist()
    logits = logits_of(model, prompt)
    last = logits[-1]
    ids, margin = list(prompt), 1.0
    for _ in range(STEPS):
        row = logits_of(model, ids)[-1]
        top = row.topk(2).values
        margin = min(margin, float((top[0] - top[1]) / row.abs().max()))
        ids.append(int(row.argmax()))
    top2 = logits.topk(2, dim=-1).values
    margin = min(margin, float(((top2[:, 0] - top2[:, 1]) / logits.abs().max(dim=-1).values).min()))
    apart = 1.0
    if off:
        other = logits_of(load(path, **off), prompt)[-1]
        apart = float((other - last).abs().max() / last.abs().max())
    print(f"{name}: seed {seed} margin {margin:.4f} apart {apart:.4f} distinct {len(set(ids[n_prompt:]))}")
    if apart < 0.02:
        sys.exit(f"{name}: the feature does not show")
    if margin < MARGIN or len(set(ids[n_prompt:])) < 4:
        return False
    case = {"prompt": prompt, "logits_last": numbers(last), "argmax_per_position": logits.argmax(-1).tolist(),
            "greedy": ids[n_prompt:]}
    if kind == "inner":
        hidden = model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
        case |= {"hidden_last": numbers(hidden[-1]), "hidden_mean": numbers(hidden.mean(dim=0))}
    with open(os.path.join(path, "reference.json"), "w") as f:
        json.dump({"source": f"transformers {transformers.__version__}, float32 on the stored weights",
                   "cases": [case]}, f)
        f.write("\n")
    return True


def make(name, index):
    cls, fields, off, style, n_prompt, kind = CASES[name]
    path = os.path.join(OUT, name)
    for seed in range(1000 * (index + 1), 1000 * (index + 1) + 200):
        shutil.rmtree(path, ignore_errors=True)
        if cls is Phi3Config:
            fields = fields | dict(pad_token_id=0, eos_token_id=2)
        config = cls(**(SIZES | dict(rope_parameters=rope("default")) | fields))
        model = AutoModelForCausalLM.from_config(config)
        randomise(model, seed)
        model.tie_weights()
        model.save_pretrained(path)
        store(path, kind)
        rewrite_config(os.path.join(path, "config.json"), style)
        if reference(name, path, off, n_prompt, seed, kind):
            break
    else:
        sys.exit(f"{name}: no seed has wide margins")
    generation = os.path.join(path, "generation_config.json")
    if name == "mistral-no-window":
        with open(generation, "w") as f:
            json.dump({"bos_token_id": 1, "eos_token_id": [2, 7], "do_sample": True,
                       "temperature": 0.6, "top_p": 0.95}, f, indent=2)
            f.write("\n")
    elif name == "llama-old-rope-theta":
        os.unlink(generation)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    if size > 300000:
        sys.exit(f"{name}: {size} bytes")


def rope_tables():
    """cos and sin as transformers has them, at a few positions, for configurations of real models."""
    positions = [0, 1, 7, 100, 1000, 4000]
    real = dict(hidden_size=256, num_attention_heads=2, num_key_value_heads=1, intermediate_size=16,
                num_hidden_layers=1, vocab_size=16, max_position_embeddings=131072)
    kinds = {
        "default": rope("default"),
        "default-theta": rope("default") | {"rope_theta": 1000000.0},
        "linear": rope("linear", factor=4.0),
        "llama3": LLAMA3 | {"rope_theta": 500000.0, "factor": 32.0,
                            "original_max_position_embeddings": 8192},
        "yarn": YARN | {"rope_theta": 1000000.0, "original_max_position_embeddings": 32768},
        "yarn-betas": YARN | dict(beta_fast=20, beta_slow=3, truncate=False),
        "yarn-mscale": YARN | dict(factor=40.0, mscale=1.0, mscale_all_dim=0.5),
        "yarn-attention-factor": YARN | dict(attention_factor=1.5),
        "yarn-small-factor": YARN | dict(factor=0.5),
    }
    result = []
    for name, params in kinds.items():
        config = LlamaConfig(**real, rope_parameters=dict(params))
        written = json.loads(config.to_json_string(use_diff=False))["rope_parameters"]
        rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
        cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.tensor([positions]))
        half = cos.shape[-1] // 2
        result.append({"name": name, "rope_parameters": written, "positions": positions,
                       "cos": [[float(f"{x:.8g}") for x in row[:half].tolist()] for row in cos[0]],
                       "sin": [[float(f"{x:.8g}") for x in row[:half].tolist()] for row in sin[0]]})
    with open(os.path.join(HERE, "rope.json"), "w") as f:
        json.dump({"config": real | {"architectures": ["LlamaForCausalLM"]}, "cases": result}, f)
        f.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for i, case in enumerate(CASES):
        if len(sys.argv) == 1 or case in sys.argv[1:]:
            make(case, i)
    rope_tables()
