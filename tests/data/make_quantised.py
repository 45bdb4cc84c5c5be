#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the quantised checkpoints of tests/data/checkpoints.

For development only, as make_checkpoints.py, whose weights and reference this uses: the reference is
transformers' in float32 on W = (q - zero) * factor. A checkpoint is refused if arithmetic in bf16
moves its logits far. quantise.py has the formats.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, Gemma2Config, LlamaConfig,
                          Qwen3MoeConfig)

import make_checkpoints as maker
from quantise import (awq, float_config, fp8, fp8_config, gptq, gptq_config, is_linear, mixed_config,
                      modelopt_config, packed, packed_config)

SIZES = maker.SIZES | dict(vocab_size=99)
# Two blocks of 128 in each direction, the second one cut; DeepSeek's blocks are small instead.
WIDE = dict(hidden_size=144, intermediate_size=136, num_hidden_layers=1, vocab_size=67,
            tie_word_embeddings=True)
# What a device with packed weights keeps packed (kernels/packed.h): columns in multiples of 128.
EVEN = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=1, vocab_size=72,
            tie_word_embeddings=True)
# Down of its shared experts has 64 columns.
EVEN_LATENT = maker.LATENT | dict(hidden_size=128, num_hidden_layers=1, vocab_size=40, kv_lora_rank=128,
                                  q_lora_rank=128, qk_nope_head_dim=24, v_head_dim=32,
                                  n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                  moe_intermediate_size=32, first_k_dense_replace=0)
# All of its experts and of the shared one.
EVEN_EXPERTS = maker.LATENT | dict(hidden_size=128, num_hidden_layers=1, vocab_size=40, tie_word_embeddings=True,
                                   q_lora_rank=None, qk_nope_head_dim=8, v_head_dim=32, n_routed_experts=3,
                                   num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=128,
                                   first_k_dense_replace=0)
# With two groups of columns and more in each matrix but o.
GROUPS = EVEN | dict(hidden_size=256, intermediate_size=384, head_dim=32, vocab_size=40)
# The same beside plain attention.
EVEN_MOE = EVEN | dict(head_dim=16, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=128, norm_topk_prob=True)
GROUP = 16
# Of the largest logit; the tests allow devices with bf16 activations more than twice as much.
ROUNDING = 0.02

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# name: (class, sizes, quantise, quantization_config)
CASES = {
    "fp8-blocks": (LlamaConfig, WIDE, fp8((128, 128), "weight_scale_inv", F32),
                   fp8_config(weight_block_size=[128, 128], modules_to_not_convert=["lm_head"])),
    "fp8-blocks-deepseek": (DeepseekV3Config, maker.LATENT | dict(n_group=4, topk_group=2),
                            fp8((16, 24), "weight_scale_inv", BF16),
                            fp8_config(weight_block_size=[16, 24])),
    "fp8-tensor": (LlamaConfig, {}, fp8((0, 0), "weight_scale", F32, (), ["input_scale"]),
                   fp8_config(activation_scheme="static", ignored_layers=["lm_head"])),
    "compressed-channel": (LlamaConfig, {}, fp8((1, 0), "weight_scale", BF16),
                           float_config("channel")),
    "compressed-tensor": (LlamaConfig, {}, fp8((0, 0), "weight_scale", BF16, (1,)),
                          float_config("tensor")),
    "compressed-block": (LlamaConfig, {}, fp8((32, 16), "weight_scale", F32),
                         float_config("block", block_structure=[32, 16])),
    "compressed-int4": (LlamaConfig, {}, packed(GROUP, True, False, BF16),
                        packed_config(strategy="group", group_size=GROUP)),
    "compressed-int4-channel": (LlamaConfig, {}, packed(0, False, False, F16),
                                packed_config(strategy="channel", symmetric=False)),
    "compressed-int4-order": (LlamaConfig, {}, packed(GROUP, False, True, BF16),
                              packed_config(strategy="group", group_size=GROUP, symmetric=False,
                                            actorder="group")),
    "gptq": (LlamaConfig, {}, gptq(GROUP, True, False, 1), gptq_config(GROUP)),
    "gptq-order": (LlamaConfig, {}, gptq(GROUP, False, True, 1),
                   gptq_config(GROUP, desc_act=True, sym=False)),
    "gptq-v2": (LlamaConfig, {}, gptq(0, False, False, 0),
                gptq_config(-1, checkpoint_format="gptq_v2", sym=False)),
    "awq": (LlamaConfig, {}, awq(GROUP),
            dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm",
                 modules_to_not_convert=None)),
    # seeds go by the place in this list: new cases come last
    "fp8-blocks-128": (LlamaConfig, EVEN, fp8((128, 128), "weight_scale_inv", F32),
                       fp8_config(weight_block_size=[128, 128], modules_to_not_convert=["lm_head"])),
    "fp8-blocks-deepseek-128": (DeepseekV3Config, EVEN_LATENT, fp8((128, 128), "weight_scale_inv", BF16),
                                fp8_config(weight_block_size=[128, 128])),
    "fp8-tensor-128": (LlamaConfig, EVEN, fp8((0, 0), "weight_scale", F32, (), ["input_scale"]),
                       fp8_config(activation_scheme="static", ignored_layers=["lm_head"])),
    "compressed-channel-128": (LlamaConfig, EVEN | dict(tie_word_embeddings=False),
                               fp8((1, 0), "weight_scale", BF16), float_config("channel") | dict(ignore=[])),
    "compressed-int4-128": (LlamaConfig, EVEN, packed(128, True, False, BF16),
                            packed_config(strategy="group", group_size=128)),
    "compressed-int4-channel-128": (LlamaConfig, EVEN, packed(0, False, False, F16),
                                    packed_config(strategy="channel", symmetric=False)),
    "gptq-128": (LlamaConfig, EVEN, gptq(128, False, False, 1), gptq_config(128, sym=False)),
    "gptq-order-128": (LlamaConfig, EVEN, gptq(128, True, True, 1), gptq_config(128, desc_act=True)),
    "awq-128": (LlamaConfig, EVEN, awq(128),
                dict(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm",
                     modules_to_not_convert=None)),
    "fp8-blocks-experts-128": (DeepseekV2Config, EVEN_EXPERTS, fp8((128, 128), "weight_scale_inv", F32),
                               fp8_config(weight_block_size=[128, 128])),
    "gptq-order-256": (LlamaConfig, GROUPS, gptq(128, False, True, 1),
                       gptq_config(128, desc_act=True, sym=False)),
    # by a part of the matrix's name
    "compressed-mixed-128": (LlamaConfig, EVEN,
                             {"self_attn": fp8((1, 0), "weight_scale", BF16), "mlp": packed(128, False, False, BF16)},
                             mixed_config({r"re:.*self_attn\..*_proj$": float_config("channel"),
                                           "Linear": packed_config(strategy="group", group_size=128,
                                                                   symmetric=False)})),
    "modelopt-128": (LlamaConfig, EVEN, fp8((0, 0), "weight_scale", F32, (), ["input_scale"]), modelopt_config()),
    "compressed-int4-32": (LlamaConfig, EVEN, packed(32, False, False, BF16),
                           packed_config(strategy="group", group_size=32, symmetric=False)),
    "awq-64": (LlamaConfig, EVEN, awq(64),
               dict(quant_method="awq", bits=4, group_size=64, zero_point=True, version="gemm",
                    modules_to_not_convert=None)),
    "fp8-blocks-qwen3-moe-128": (Qwen3MoeConfig, EVEN_MOE, fp8((128, 128), "weight_scale_inv", F32),
                                 fp8_config(weight_block_size=[128, 128])),
    # the MLP's columns are in another order than those of q, k and v
    "gptq-order-gemma2-32": (Gemma2Config,
                             GROUPS | dict(intermediate_size=256, query_pre_attn_scalar=32, sliding_window=64,
                                           attn_logit_softcapping=None, final_logit_softcapping=None,
                                           tie_word_embeddings=False),
                             {"self_attn": gptq(32, False, 1, 1), "mlp": gptq(32, False, 2, 1)},
                             gptq_config(32, desc_act=True, sym=False)),
}


def dump(value, path, name):
    with open(os.path.join(path, name), "w") as f:
        json.dump(value, f, indent=2, sort_keys=True)
        f.write("\n")


def write(name, seed, path, widened_path):
    """The checkpoint, and the model that it stands for as float32."""
    cls, sizes, quantise, quantisation = CASES[name]
    config = cls(**(SIZES | dict(rope_parameters=maker.rope("default")) | sizes))
    model = AutoModelForCausalLM.from_config(config)
    maker.randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(widened_path)
    file = os.path.join(widened_path, "model.safetensors")
    stored, widened = {}, {}
    for key, tensor in load_file(file).items():
        if is_linear(key, quantisation.get("ignore") == []):
            one = quantise if callable(quantise) else next(f for part, f in quantise.items() if part in key)
            parts, widened[key] = one(tensor.float())
            stored |= {key.removesuffix("weight") + part: t for part, t in parts.items()}
        else:
            stored[key] = tensor.to(maker.dtype_of("bf16", key)).contiguous()
            widened[key] = stored[key].float()
    save_file({k: t.contiguous() for k, t in widened.items()}, file, metadata={"format": "pt"})
    os.makedirs(path)
    save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(widened_path, "config.json")) as f:
        written = json.load(f)
    if "quantization" in quantisation:
        dump(quantisation, path, "hf_quant_config.json")
    else:
        written |= dict(quantization_config=quantisation)
    dump(written, path, "config.json")


def rounding(path):
    """What bf16 arithmetic alone changes, of the largest logit."""
    with open(os.path.join(path, "reference.json")) as f:
        case = json.load(f)["cases"][0]
    want = torch.tensor(case["logits_last"])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=BF16, attn_implementation="eager")
    have = maker.logits_of(model.eval(), case["prompt"])[-1].float()
    return float((have - want).abs().max() / want.abs().max())


def make(name, index):
    path = os.path.join(maker.OUT, name)
    for seed in range(100000 + 1000 * index, 100000 + 1000 * index + 200):
        shutil.rmtree(path, ignore_errors=True)
        with tempfile.TemporaryDirectory() as widened_path:
            write(name, seed, path, widened_path)
            if not maker.reference(name, widened_path, None, 24, seed):
                continue
            if rounding(widened_path) > ROUNDING:
                continue
            shutil.copy(os.path.join(widened_path, "reference.json"), path)
        break
    else:
        sys.exit(f"{name}: no seed has wide margins")
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    if size > 250000:
        sys.exit(f"{name}: {size} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for i, case in enumerate(CASES):
        if len(sys.argv) == 1 or case in sys.argv[1:]:
            make(case, i)
