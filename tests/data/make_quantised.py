#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the quantised checkpoints of tests/data/checkpoints.

For development only, as make_checkpoints.py, whose weights and reference this uses: the reference is
transformers' in float32 on W = (q - zero) * factor. A checkpoint is refused if arithmetic in bf16
moves its logits far. The packing is written down here from the formats' descriptions; that of
compressed-tensors 0.20 was compared with its own decompressor.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

import make_checkpoints as maker

SIZES = maker.SIZES | dict(vocab_size=99)
# Two blocks of 128 in each direction, the second one cut; DeepSeek's blocks are small instead.
WIDE = dict(hidden_size=144, intermediate_size=136, num_hidden_layers=1, vocab_size=67,
            tie_word_embeddings=True)
GROUP = 16
# Of the largest logit; the tests allow devices with bf16 activations more than twice as much.
ROUNDING = 0.02
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def ceil(a, b):
    return -(-a // b)


# ---- fp8: a function of W [N, K] gives the tensors behind the module's name, and W again ----

def spread(factors, block, shape):
    """A factor for each element."""
    rows = factors.repeat_interleave(block[0], 0)[:shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, :shape[1]]


def fp8(block, name, dtype, scalar=None, more=()):
    def quantise(w):
        shape = tuple(w.shape)
        b = tuple(x or n for x, n in zip(block, shape))
        n, k = ceil(shape[0], b[0]), ceil(shape[1], b[1])
        padded = torch.zeros(n * b[0], k * b[1])
        padded[:shape[0], :shape[1]] = w.abs()
        factors = (padded.reshape(n, b[0], k, b[1]).amax((1, 3)) / 448).to(dtype)
        all_factors = spread(factors.float(), b, shape)
        q = (w / all_factors).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = factors if scalar is None else factors.reshape(scalar)
        tensors = {"weight": q, name: stored.contiguous()}
        for extra in more:
            tensors[extra] = torch.full(scalar, 0.25)
        return tensors, q.float() * all_factors
    return quantise


# ---- 4 bits ----

def nibbles(q, dim, order=range(8)):
    """Words of 8 elements along dim; element order[i] of the eight is nibble i."""
    q = q.movedim(dim, -1).to(torch.int64)
    q = q.reshape(*q.shape[:-1], -1, 8)
    words = sum(q[..., e] << 4 * i for i, e in enumerate(order))
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return words.movedim(-1, dim).contiguous()


def groups_of(k, group, permuted):
    if permuted:
        place = torch.randperm(k, generator=torch.Generator().manual_seed(k))
        return place // group
    return torch.arange(k) // group


def int4(w, group, symmetric, permuted, dtype):
    """q in 0..15, factors [N, G], zeros [N, G], groups [K], W."""
    n, k = w.shape
    group = group or k
    g_idx = groups_of(k, group, permuted)
    factors, zeros, q = [], [], torch.zeros(n, k, dtype=torch.int64)
    for g in range(ceil(k, group)):
        part = w[:, g_idx == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            factor = (torch.maximum(-low / 8, high / 7)).to(dtype)
            zero = torch.full((n,), 8)
        else:
            factor = ((high - low) / 15).to(dtype)
            zero = (-low / factor.float()).round().clamp(1, 15).to(torch.int64)
        q[:, g_idx == g] = (part / factor.float()[:, None] + zero[:, None]).round().clamp(
            0, 15).to(torch.int64)
        factors.append(factor)
        zeros.append(zero)
    factors, zeros = torch.stack(factors, 1), torch.stack(zeros, 1)
    widened = (q - zeros[:, g_idx]).float() * factors.float()[:, g_idx]
    return q, factors, zeros, g_idx, widened


def gptq(group, symmetric, permuted, zeros_less):
    def quantise(w):
        q, factors, zeros, g_idx, widened = int4(w, group, symmetric, permuted, torch.float16)
        return {"qweight": nibbles(q.T, 0), "qzeros": nibbles(zeros.T - zeros_less, 1),
                "scales": factors.T.contiguous(), "g_idx": g_idx.to(torch.int32)}, widened
    return quantise


def packed(group, symmetric, permuted, dtype):
    def quantise(w):
        q, factors, zeros, g_idx, widened = int4(w, group, symmetric, permuted, dtype)
        tensors = {"weight_packed": nibbles(q, 1), "weight_scale": factors.contiguous(),
                   "weight_shape": torch.tensor(w.shape)}
        if not symmetric:
            tensors["weight_zero_point"] = nibbles(zeros, 0)
        if permuted:
            tensors["weight_g_idx"] = g_idx.to(torch.int32)
        return tensors, widened
    return quantise


def awq(group):
    def quantise(w):
        q, factors, zeros, _, widened = int4(w, group, False, False, torch.float16)
        return {"qweight": nibbles(q.T, 1, AWQ_ORDER), "qzeros": nibbles(zeros.T, 1, AWQ_ORDER),
                "scales": factors.T.contiguous()}, widened
    return quantise


# ---- config.json ----

def fp8_config(**more):
    return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic") | more


def compressed(kind, weights, inputs=None):
    return dict(quant_method="compressed-tensors", format=kind, quantization_status="compressed",
                global_compression_ratio=None, kv_cache_scheme=None, ignore=["lm_head"],
                config_groups=dict(group_0=dict(
                    targets=["Linear"], input_activations=inputs, output_activations=None,
                    weights=dict(dynamic=False, observer="minmax", observer_kwargs={},
                                 actorder=None, block_structure=None, group_size=None) | weights)))


def float_config(strategy, **more):
    return compressed("float-quantized",
                      dict(num_bits=8, type="float", symmetric=True, strategy=strategy) | more,
                      dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True))


def packed_config(**more):
    return compressed("pack-quantized", dict(num_bits=4, type="int", symmetric=True) | more)


def gptq_config(**more):
    return dict(quant_method="gptq", bits=4, group_size=GROUP, desc_act=False, sym=True,
                lm_head=False, damp_percent=0.01, true_sequential=True, checkpoint_format="gptq",
                pack_dtype="int32", dynamic={}, meta=dict(quantizer=["hand:1"])) | more


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
    "gptq": (LlamaConfig, {}, gptq(GROUP, True, False, 1), gptq_config()),
    "gptq-order": (LlamaConfig, {}, gptq(GROUP, False, True, 1),
                   gptq_config(desc_act=True, sym=False)),
    "gptq-v2": (LlamaConfig, {}, gptq(0, False, False, 0),
                gptq_config(checkpoint_format="gptq_v2", sym=False, group_size=-1)),
    "awq": (LlamaConfig, {}, awq(GROUP),
            dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm",
                 modules_to_not_convert=None)),
}


def is_linear(name):
    return name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")


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
        if is_linear(key):
            parts, widened[key] = quantise(tensor.float())
            stored |= {key.removesuffix("weight") + part: t for part, t in parts.items()}
        else:
            stored[key] = tensor.to(maker.dtype_of("bf16", key)).contiguous()
            widened[key] = stored[key].float()
    save_file({k: t.contiguous() for k, t in widened.items()}, file, metadata={"format": "pt"})
    os.makedirs(path)
    save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(widened_path, "config.json")) as f:
        written = json.load(f)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(written | dict(quantization_config=quantisation), f, indent=2, sort_keys=True)
        f.write("\n")


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
    if size > 200000:
        sys.exit(f"{name}: {size} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for i, case in enumerate(CASES):
        if len(sys.argv) == 1 or case in sys.argv[1:]:
            make(case, i)
