#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tinycalc-mtp: the tasks of tinycalc in DeepSeek V3's layout, with an MTP head.

    train_mtp.py OUT [--trunk-steps N] [--head-steps N]
    train_mtp.py OUT --golden        golden.json of weights that are there

Needs torch, transformers and safetensors; minutes on one core. The trunk begins with the weights of tinycalc-moe, whose
attention and MLPs are V3's already, and is trained until its experts fit V3's routing. Then the trunk is held and
the head is trained to say what the trunk will: in its first pass it reads the trunk's states, in a second one its own.
Done as is, a verification of 4 draft tokens yields 3 tokens (tests/daemon/test_engine_accept.c).

A token is a byte; 1 begins a sequence, 2 ends one. A sample is 1 PROMPT ANSWER 2, as in
"347+586=" -> "933", "count 17 3\\n" -> "17 18 19", "sort 52 17 33\\n" -> "17 33 52", "rev hello\\n" -> "olleh".
"""
import argparse
import json
import math
import os
import random
import string
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", attention_bias=False, bos_token_id=1,
    dtype="bfloat16", eos_token_id=2, first_k_dense_replace=1, hidden_act="silu", hidden_size=160,
    intermediate_size=448, kv_lora_rank=64, max_position_embeddings=2048, moe_intermediate_size=96, n_group=4,
    n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=2,
    num_hidden_layers=5, num_key_value_heads=4, num_nextn_predict_layers=1, pad_token_id=0, q_lora_rank=None,
    qk_nope_head_dim=32, qk_rope_head_dim=32, rms_norm_eps=1e-5, rope_interleave=True,
    rope_parameters=dict(rope_theta=10000.0, rope_type="default"), routed_scaling_factor=1.0,
    scoring_func="sigmoid", tie_word_embeddings=False, topk_group=2, topk_method="noaux_tc", v_head_dim=32,
    vocab_size=256)
VOCAB, HIDDEN, LAYERS, HEADS, RANK, NOPE, ROPE, V = 256, 160, 5, 4, 64, 32, 32, 32
EXPERTS, GROUPS, GROUPS_ACTIVE, ACTIVE, INNER, DENSE = 8, 4, 2, 2, 96, 448


def sample(r):
    k = r.random()
    if k < .35:
        a, b = r.randrange(10 ** r.randint(1, 3)), r.randrange(10 ** r.randint(1, 3))
        return f"{a}+{b}=", str(a + b)
    if k < .6:
        a, n = r.randrange(10 ** r.randint(1, 4)), r.randint(1, 30)
        return f"count {a} {n}\n", " ".join(str(a + i) for i in range(n))
    if k < .8:
        v = [r.randrange(100) for _ in range(r.randint(1, 8))]
        return "sort " + " ".join(map(str, v)) + "\n", " ".join(map(str, sorted(v)))
    w = "".join(r.choice(string.ascii_lowercase) for _ in range(r.randint(1, 12)))
    return f"rev {w}\n", w[::-1]


def batches(seed, tokens):
    """Batches of samples of similar lengths: ids, and which of them are answers."""
    r = random.Random(seed)
    while True:
        pool = sorted((sample(r) for _ in range(8192)), key=lambda s: len(s[0]) + len(s[1]))
        cut, begin = [], 0
        while begin < len(pool):
            end = begin + 1
            while end < len(pool) and (end + 1 - begin) * (len(pool[end][0]) + len(pool[end][1]) + 2) <= tokens:
                end += 1
            cut.append(pool[begin:end])
            begin = end
        r.shuffle(cut)
        for part in cut:
            length = max(len(p) + len(a) for p, a in part) + 2
            x = torch.zeros(len(part), length, dtype=torch.long)
            mask = torch.zeros(len(part), length, dtype=torch.bool)
            for i, (p, a) in enumerate(part):
                s = b"\x01" + p.encode() + a.encode() + b"\x02"
                x[i, :len(s)] = torch.tensor(list(s))
                mask[i, len(p) + 1:len(s)] = True
            yield x, mask


class Norm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def linear(rows, cols):
    layer = nn.Linear(cols, rows, bias=False)
    nn.init.normal_(layer.weight, std=.04)
    return layer


def rotate(x):
    """x [batch, heads, tokens, ROPE]; pairs (2i, 2i + 1)"""
    angles = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = linear(HEADS * (NOPE + ROPE), HIDDEN)
        self.kv_a_proj_with_mqa = linear(RANK + ROPE, HIDDEN)
        self.kv_a_layernorm = Norm(RANK, 1e-6)
        self.kv_b_proj = linear(HEADS * (NOPE + V), RANK)
        self.o_proj = linear(HIDDEN, HEADS * V)

    def forward(self, x):
        n, t, _ = x.shape
        q = self.q_proj(x).view(n, t, HEADS, -1).transpose(1, 2)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([RANK, ROPE], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(n, t, HEADS, -1).transpose(1, 2)
        k_rope = rotate(k_rope[:, None]).expand(-1, HEADS, -1, -1)
        q = torch.cat([q[..., :NOPE], rotate(q[..., NOPE:])], -1)
        out = F.scaled_dot_product_attention(q, torch.cat([kv[..., :NOPE], k_rope], -1), kv[..., NOPE:],
                                             is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(n, t, -1))


class Mlp(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.gate_proj, self.up_proj = linear(inner, HIDDEN), linear(inner, HIDDEN)
        self.down_proj = linear(HIDDEN, inner)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * .04)
        self.register_buffer("e_score_correction_bias", torch.zeros(EXPERTS))

    def forward(self, x):
        """Experts are chosen by score and bias from the best groups, and weighed by score."""
        scores = torch.sigmoid(F.linear(x.float(), self.weight.float()))
        choice = scores.detach() + self.e_score_correction_bias
        groups = choice.view(-1, GROUPS, EXPERTS // GROUPS)
        best = groups.topk(2, -1).values.sum(-1).topk(GROUPS_ACTIVE, -1).indices
        kept = torch.zeros(len(x), GROUPS).scatter_(1, best, 1.).bool()
        choice = groups.masked_fill(~kept[..., None], 0.).view(-1, EXPERTS)
        experts = choice.topk(ACTIVE, -1).indices
        weights = scores.gather(1, experts)
        return experts, weights / (weights.sum(-1, keepdim=True) + 1e-20)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.shared_experts = Gate(), Mlp(INNER)
        self.experts = nn.ModuleList(Mlp(INNER) for _ in range(EXPERTS))

    def forward(self, x):
        flat = x.reshape(-1, HIDDEN)
        chosen, weights = self.gate(flat)
        out = self.shared_experts(flat).float()
        for i, expert in enumerate(self.experts):
            token, rank = (chosen == i).nonzero(as_tuple=True)
            out = out.index_add(0, token, expert(flat[token]).float() * weights[token, rank, None])
        if self.training:  # balance without a loss of its own, as the paper of V3 does
            load = torch.bincount(chosen.flatten(), minlength=EXPERTS).float()
            self.gate.e_score_correction_bias += 1e-3 * torch.sign(load.mean() - load)
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        self.self_attn, self.mlp = Attention(), Experts() if experts else Mlp(DENSE)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.model.layers = nn.ModuleList(Layer(i > 0) for i in range(LAYERS))
        self.model.norm = Norm(HIDDEN)
        self.lm_head = linear(VOCAB, HIDDEN)

    def forward(self, ids):
        """Each token's state after the final norm."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x)


class Head(Layer):
    """Position i has token i + 1 and the state of token i, and predicts token i + 2."""

    def __init__(self):
        super().__init__(True)
        self.enorm, self.hnorm, self.eh_proj = Norm(HIDDEN), Norm(HIDDEN), linear(HIDDEN, 2 * HIDDEN)
        self.shared_head = nn.Module()
        self.shared_head.norm = Norm(HIDDEN)

    def forward(self, embedding, hidden):
        x = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden)], -1))
        return self.shared_head.norm(super().forward(x))


def train(name, parameters, steps, top, data, loss_of):
    parameters = list(parameters)
    optimizer, begin = torch.optim.AdamW(parameters, lr=top, betas=(.9, .98), weight_decay=.02), time.time()
    for step, batch in zip(range(steps), data):
        for group in optimizer.param_groups:
            group["lr"] = top * min(1, (step + 1) / 20) * (.5 * (1 + math.cos(math.pi * step / steps)) * .98 + .02)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.)
        optimizer.step()
        if step % 10 == 0:
            print(f"{name} {step} loss {loss.item():.4f} after {time.time() - begin:.0f} s", flush=True)


def trunk_loss(trunk, x, mask):
    logits = trunk.lm_head(trunk(x[:, :-1]))
    return F.cross_entropy(logits[mask[:, 1:]], x[:, 1:][mask[:, 1:]])


@torch.no_grad()
def states_of(trunk, data, n):
    """The trunk's states of n batches, which the head is trained on again and again."""
    return [(x, mask, trunk(x)) for (x, mask), _ in zip(data, range(n))]


def shuffled(batches, seed):
    r = random.Random(seed)
    while True:
        yield from r.sample(batches, len(batches))


def head_loss(trunk, head, x, mask, states, passes=2):
    embedding, said = trunk.model.embed_tokens(x[:, 1:]), trunk.lm_head(states).argmax(-1)
    hidden, loss, wanted = states[:, :-1], 0, mask[:, 2:]
    for _ in range(passes):
        out = head(embedding, hidden)
        logits = trunk.lm_head(out[:, :-1][wanted])
        loss = loss + F.cross_entropy(logits, said[:, 1:-1][wanted])
        hidden = torch.cat([states[:, :1], out[:, :-1]], 1)
    return loss / passes


@torch.no_grad()
def evaluate(trunk, head, seed=99, n=200):
    """Exact answers, by task, and how often the head's first pass says what the trunk does."""
    r, right = random.Random(seed), {}
    trunk.eval(), head.eval()
    for p, a in (sample(r) for _ in range(n)):
        s = list(b"\x01" + p.encode() + a.encode() + b"\x02")
        said = trunk.lm_head(trunk(torch.tensor([s[:-1]]))).argmax(-1)[0].tolist()
        task = right.setdefault("add" if "+" in p else p.split()[0], [0, 0])
        task[0] += said[len(p):] == s[len(p) + 1:]
        task[1] += 1
    same, total = 0, 0
    for (x, mask), _ in zip(batches(seed, 4096), range(4)):
        states = trunk(x)
        said = trunk.lm_head(states).argmax(-1)[:, 1:-1]
        drafted = trunk.lm_head(head(trunk.model.embed_tokens(x[:, 1:]), states[:, :-1]))[:, :-1].argmax(-1)
        same += ((said == drafted) & mask[:, 2:]).sum().item()
        total += mask[:, 2:].sum().item()
    print("exact", {k: f"{a}/{b}" for k, (a, b) in right.items()}, f"head agrees {same}/{total}", flush=True)


def save(trunk, head, directory):
    tensors = dict(trunk.state_dict())
    prefix = f"model.layers.{LAYERS}."
    tensors.update({prefix + k: v for k, v in head.state_dict().items()})
    # V3's files repeat what the head shares with its model
    tensors[prefix + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[prefix + "shared_head.head.weight"] = tensors["lm_head.weight"]
    os.makedirs(directory, exist_ok=True)
    save_file({k: v.clone().to(torch.float32 if "correction" in k else torch.bfloat16) for k, v in tensors.items()},
              f"{directory}/model.safetensors", metadata={"format": "pt"})
    with open(f"{directory}/config.json", "w") as f:
        json.dump(CONFIG, f, indent=2)
        f.write("\n")
    with open(f"{directory}/generation_config.json", "w") as f:
        json.dump(dict(bos_token_id=1, eos_token_id=2, pad_token_id=0), f, indent=2)
        f.write("\n")


def numbers(row):
    return [float(f"{x:.7g}") for x in row.tolist()]


@torch.no_grad()
def golden_case(model, text):
    """The model's part, by transformers."""
    prompt = [1, *text.encode()]
    logits, ids = model(torch.tensor([prompt])).logits[0], list(prompt)
    while len(ids) < len(prompt) + 150 and ids[-1] != 2:
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return dict(prompt=prompt, logits_last=numbers(logits[-1]), argmax_per_position=logits.argmax(-1).tolist(),
                greedy=ids[len(prompt):])


@torch.no_grad()
def golden_head(model, trunk, head, ids, n_guesses=4):
    """The head's, by this file: of its positions behind ids[:-1], then of its own guesses."""
    states = trunk(torch.tensor([ids[:-1]]))
    target = model(torch.tensor([ids[:-1]])).logits[0, -1]
    assert (trunk.lm_head(states)[0, -1] - target).abs().max() < 1e-4 * target.abs().max()
    hidden, following = states, ids[1:]
    out = head(trunk.model.embed_tokens(torch.tensor([following])), hidden)
    rows, guesses = list(trunk.lm_head(out)[0]), []
    for _ in range(n_guesses):
        guesses.append(int(rows[-1].argmax()))
        following = following + guesses[-1:]
        hidden = torch.cat([hidden, out[:, -1:]], 1)
        out = head(trunk.model.embed_tokens(torch.tensor([following])), hidden)
        rows.append(trunk.lm_head(out)[0, -1])
    last = len(ids) - 2
    return dict(ids=ids, target_logits_last=numbers(target), guesses=guesses,
                logits=[dict(position=i, row=numbers(rows[i]))
                        for i in [0, last // 2, *range(last, last + 1 + n_guesses)]])


def write_golden(directory):
    import transformers
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager").eval()
    weights = {k: v.float() for k, v in load_file(f"{directory}/model.safetensors").items()}
    prefix = f"model.layers.{LAYERS}."
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    trunk, head = Trunk().eval(), Head().eval()
    trunk.load_state_dict({k: v for k, v in weights.items() if not k.startswith(prefix)})
    head.load_state_dict({k: v for k, v in own.items() if k not in ("embed_tokens.weight", "shared_head.head.weight")})
    texts = ["347+586=", "9+8=", "count 97 12\n", "count 4 30\n", "sort 52 17 33 8 91\n", "rev mimeograph\n"]
    cases = [golden_case(model, text) for text in texts]
    ids = cases[2]["prompt"] + cases[2]["greedy"][:9]
    with open(f"{directory}/golden.json", "w") as f:
        json.dump(dict(source=f"transformers {transformers.__version__}, float32 on bf16 weights; head: train_mtp.py",
                       cases=cases, head=golden_head(model, trunk, head, ids)), f)
        f.write("\n")


def begin_head(trunk):
    """The trunk's last layer, which reads the state as if the embedding were not there."""
    head = Head()
    head.load_state_dict(trunk.model.layers[LAYERS - 1].state_dict(), strict=False)
    with torch.no_grad():
        head.eh_proj.weight[:, HIDDEN:] += torch.eye(HIDDEN)
        head.shared_head.norm.weight.copy_(trunk.model.norm.weight)
    return head


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--trunk-steps", type=int, default=100)
    parser.add_argument("--head-steps", type=int, default=1500)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--pool", type=int, default=128, help="batches whose states the head is trained on")
    parser.add_argument("--golden", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if args.golden:
        return write_golden(args.out)
    trunk = Trunk()
    old = {k: v.float() for k, v in load_file(f"{HERE}/tinycalc-moe/model.safetensors").items()}
    missing, other = trunk.load_state_dict(old, strict=False)
    assert not other and all("correction" in k for k in missing), (missing, other)
    train("trunk", trunk.parameters(), args.trunk_steps, 3e-4, batches(1, args.batch_tokens),
          lambda x, m: trunk_loss(trunk.train(), x, m))
    trunk.eval()
    for p in trunk.parameters():
        p.requires_grad_(False)
        p.data = p.data.to(torch.bfloat16).float()  # the head reads states of the weights that are saved
    head = begin_head(trunk)
    pool = states_of(trunk, batches(2, args.batch_tokens), args.pool)
    train("head", head.parameters(), args.head_steps, 2e-3, shuffled(pool, 3),
          lambda x, m, s: head_loss(trunk, head.train(), x, m, s))
    save(trunk, head, args.out)
    evaluate(trunk, head)


if __name__ == "__main__":
    main()
