#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Quantises a model by rounding its weights to nearest.

    quantise.py FORMAT MODEL OUT [--group N]

MODEL is a Hugging Face folder; OUT is made. Needs torch and safetensors. Only the matrices of
attention and of MLPs (*_proj.weight) are quantised. Nothing is calibrated, so better tools give
better models of 4 bits; those of 8 bits differ little. Formats:

    fp8-blocks   fp8: e4m3, a factor for each block of 128 x 128
    fp8-channel  compressed-tensors float-quantized: e4m3, a factor for each row
    int4         compressed-tensors pack-quantized: 4 bits, symmetric, a factor for each group
    gptq         GPTQ's packing of the same
    awq          AWQ's packing: 4 bits with zeros

--group: elements of a row that share a factor, of int4, gptq and awq; default 128. The last group
of a row may be smaller; most other programs want a divisor of the length of every row.

The formats are here for make_quantised.py, too. The packing is written down from their
descriptions; that of compressed-tensors 0.20 was compared with its own decompressor, and the names
and dtypes of modelopt with files that nvidia-modelopt 0.47 writes.
"""
import argparse
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def ceil(a, b):
    return -(-a // b)


def without_zeros(factors):
    """Weights that are all 0 have a factor, too."""
    return torch.where(factors == 0, 1, factors)


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
        factors = without_zeros((padded.reshape(n, b[0], k, b[1]).amax((1, 3)) / 448).to(dtype))
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
    if q.shape[-1] % 8:
        raise ValueError(f"{q.shape[-1]} rows or columns: the format packs 8 in a word")
    q = q.reshape(*q.shape[:-1], -1, 8)
    words = sum(q[..., e] << 4 * i for i, e in enumerate(order))
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return words.movedim(-1, dim).contiguous()


def groups_of(k, group, permuted):
    """permuted: 0, or the number of a permutation."""
    if permuted:
        place = torch.randperm(k, generator=torch.Generator().manual_seed(k * permuted))
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
            factor = without_zeros(torch.maximum(-low / 8, high / 7).to(dtype))
            zero = torch.full((n,), 8)
        else:
            factor = without_zeros(((high - low) / 15).to(dtype))
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


def modelopt_config():
    """For a file of its own, hf_quant_config.json."""
    return dict(producer=dict(name="modelopt", version="0.47.0"),
                quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8",
                                  exclude_modules=["lm_head", "model.embed_tokens"]))


def mixed_config(targets):
    """Of several configurations, by their target."""
    groups = {}
    for i, (target, config) in enumerate(targets.items()):
        group = config["config_groups"]["group_0"]
        groups[f"group_{i}"] = group | dict(targets=[target], format=config["format"])
    return compressed("mixed-precision", {}) | dict(config_groups=groups)


def gptq_config(group, **more):
    return dict(quant_method="gptq", bits=4, group_size=group, desc_act=False, sym=True,
                lm_head=False, damp_percent=0.01, true_sequential=True, checkpoint_format="gptq",
                pack_dtype="int32", dynamic={}, meta=dict(quantizer=["hand:1"])) | more


def is_linear(name, head=False):
    if name == "lm_head.weight":
        return head
    return name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")


# ---- a model ----

BLOCK = 128


def format_of(name, group):
    """What quantises a matrix, and the quantization_config."""
    return {
        "fp8-blocks": (fp8((BLOCK, BLOCK), "weight_scale_inv", torch.float32),
                       fp8_config(weight_block_size=[BLOCK, BLOCK],
                                  modules_to_not_convert=["lm_head"])),
        "fp8-channel": (fp8((1, 0), "weight_scale", torch.bfloat16), float_config("channel")),
        "int4": (packed(group, True, False, torch.bfloat16),
                 packed_config(strategy="group", group_size=group)),
        "gptq": (gptq(group, True, False, 1), gptq_config(group)),
        "awq": (awq(group), dict(quant_method="awq", bits=4, group_size=group, zero_point=True,
                                 version="gemm", modules_to_not_convert=None)),
    }[name]


FORMATS = ("fp8-blocks", "fp8-channel", "int4", "gptq", "awq")


def quantise_file(source, target, quantise):
    """The names of the tensors that the file has now."""
    stored = {}
    for key, tensor in load_file(source).items():
        if is_linear(key):
            try:
                parts, _ = quantise(tensor.float())
            except ValueError as error:
                sys.exit(f"{key}: {error}")
            stored |= {key.removesuffix("weight") + part: t for part, t in parts.items()}
        else:
            stored[key] = tensor
    save_file(stored, target, metadata={"format": "pt"})
    shutil.copymode(source, target)
    return stored


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def quantise_model(model, out, quantise, quantisation):
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config.get("quantization_config"):
        sys.exit(f"{model} is quantised already")
    files = sorted(model.glob("*.safetensors"))
    if not files:
        sys.exit(f"{model} has no .safetensors file")
    weight_map = {}
    for file in files:
        weight_map |= dict.fromkeys(quantise_file(file, out / file.name, quantise), file.name)
    if len(files) > 1:
        write_json(out / "model.safetensors.index.json", dict(metadata={}, weight_map=weight_map))
    write_json(out / "config.json", config | dict(quantization_config=quantisation))
    for file in model.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and not (out / file.name).exists() \
                and not file.name.endswith(".index.json"):
            shutil.copy(file, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--group", type=int, default=128)
    options = parser.parse_args()
    options.out.mkdir()
    try:
        quantise_model(options.model, options.out, *format_of(options.format, options.group))
    except BaseException:
        shutil.rmtree(options.out)
        raise


if __name__ == "__main__":
    main()
