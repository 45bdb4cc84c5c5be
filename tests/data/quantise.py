# SPDX-License-Identifier: MIT
"""The formats of quantised weights, for make_quantised.py.

The packing is written down here from the formats' descriptions; that of compressed-tensors 0.20 was
compared with its own decompressor.
"""
import torch

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


def gptq_config(group, **more):
    return dict(quant_method="gptq", bits=4, group_size=group, desc_act=False, sym=True,
                lm_head=False, damp_percent=0.01, true_sequential=True, checkpoint_format="gptq",
                pack_dtype="int32", dynamic={}, meta=dict(quantizer=["hand:1"])) | more


def is_linear(name):
    return name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")
