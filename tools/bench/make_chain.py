#!/usr/bin/env python3
"""Writes checkpoints DIR/step-000000 … as a training run would, for weightfs_bench_codec. Needs numpy.

    make_chain.py --out DIR [--size 256M] [--steps 5] [--lr 3e-6] [--dtype bf16] [--seed 0]

Weights of a Llama-like model under AdamW in its steady state: w -= lr * u, where u = m / sqrt(v) is an autoregressive
process (beta1 = 0.9) with a small constant drift. At lr 3e-6, 1e-5 and 3e-5 about 2, 5 and 12 % of bf16 weights change
in a step. The same arguments give the same bytes.
"""
import argparse
import json
import os
import struct

import numpy as np

BETA1, NOISE, DRIFT = np.float32(0.9), np.float32(0.1), np.float32(0.18)
WIDTH = {"bf16": 2, "f16": 2, "f32": 4}
CHUNK = 8 << 20  # elements of a tensor in memory at a time


def to_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def rounded(x, dtype):
    return to_bf16(x) if dtype == "bf16" else x.astype(np.float16 if dtype == "f16" else np.float32)


def tensors(elements):
    """[(name, shape, standard deviation)], about `elements` in all."""
    hidden = next(h for h in (64, 128, 256, 512, 1024, 2048, 4096, 8192) if elements <= 600 * h * h or h == 8192)
    inner, kv = hidden * 11 // 4, hidden // 4
    vocab = max(256, elements // 8 // hidden // 64 * 64)
    layers = max(1, (elements - 2 * vocab * hidden) // (2 * hidden * (hidden + kv) + 3 * hidden * inner + 2 * hidden))
    out = [("model.embed_tokens.weight", (vocab, hidden), 0.02)]
    for i in range(layers):
        name, s = f"model.layers.{i}.", 0.025 + 0.02 * (i * 7919 % 11) / 11
        out += [(name + "input_layernorm.weight", (hidden,), 0),
                (name + "mlp.down_proj.weight", (hidden, inner), s * 0.8),
                (name + "mlp.gate_proj.weight", (inner, hidden), s),
                (name + "mlp.up_proj.weight", (inner, hidden), s * 0.9),
                (name + "post_attention_layernorm.weight", (hidden,), 0),
                (name + "self_attn.k_proj.weight", (kv, hidden), s * 1.3),
                (name + "self_attn.o_proj.weight", (hidden, hidden), s * 0.8),
                (name + "self_attn.q_proj.weight", (hidden, hidden), s * 1.2),
                (name + "self_attn.v_proj.weight", (kv, hidden), s)]
    return out + [("model.norm.weight", (hidden,), 0), ("lm_head.weight", (vocab, hidden), 0.03)]


def create(path, layout, dtype):
    """An empty file with its header; returns where each tensor begins."""
    header, at, offsets = {"__metadata__": {"format": "pt"}}, 0, []
    for name, shape, _ in layout:
        size = int(np.prod(shape)) * WIDTH[dtype]
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [at, at + size]}
        offsets.append(at)
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return [offset + 8 + len(text) for offset in offsets]


def run_chunk(rng, count, deviation, frozen, steps, lr):
    """Yields the weights of each version."""
    def normal():
        return rng.standard_normal(count, dtype=np.float32)
    w = normal() * np.float32(deviation) if deviation else 1 + normal() * np.float32(0.1)
    drift = normal() * DRIFT
    u = np.zeros(count, np.float32) if frozen else normal() * np.float32(0.229) + drift
    yield w
    for _ in range(steps):
        if not frozen:
            u = u * BETA1 + (normal() + drift) * NOISE
            w = w - np.float32(lr) * u
        yield w


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="256M", help="bytes of one version: a number, K, M or G")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-6)
    parser.add_argument("--dtype", choices=list(WIDTH), default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(args.size[-1].upper())
    size = int(args.size[:-1]) * unit if unit else int(args.size)
    layout = tensors(size // WIDTH[args.dtype])
    paths = []
    for step in range(args.steps + 1):
        os.makedirs(f"{args.out}/step-{step:06d}", exist_ok=True)
        paths.append(f"{args.out}/step-{step:06d}/model.safetensors")
    offsets = [create(path, layout, args.dtype) for path in paths][0]
    for i, (name, shape, deviation) in enumerate(layout):
        total = int(np.prod(shape))
        # Rows of tokens that do not occur get no gradient: most of the embedding stands still.
        moving = total // 16 if "embed_tokens" in name else total
        for start in range(0, total, CHUNK):
            for first, last, frozen in ((start, min(moving, start + CHUNK), False),
                                        (max(start, moving), min(total, start + CHUNK), True)):
                if last <= first:
                    continue
                rng = np.random.default_rng([args.seed, i, first])
                for path, w in zip(paths, run_chunk(rng, last - first, deviation, frozen, args.steps, args.lr)):
                    with open(path, "r+b") as file:
                        file.seek(offsets[i] + first * WIDTH[args.dtype])
                        file.write(rounded(w, args.dtype).tobytes())


if __name__ == "__main__":
    main()
