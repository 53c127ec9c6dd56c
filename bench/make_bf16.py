#!/usr/bin/env python3
"""Writes a llama GGUF file's weights as a Hugging Face folder in bfloat16, for measurements.

    python3 bench/make_bf16.py MODEL.gguf FOLDER      needs the package gguf (which brings numpy)

The weights are those that the file's blocks stand for, rounded to bfloat16; query and key rows go
back to the half-split order of that form. Tokenizer and chat template come along.
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Of the pre-tokenizers, those that the files to be measured have.
PRE_TOKENIZERS = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
    "gpt-2": [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
CONTROL, USER_DEFINED = 3, 4


def value(reader, key, absent=None):
    field = reader.get_field(key)
    return absent if field is None else field.contents()


def hf_name(name):
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    _, layer, stem, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[stem]}.{suffix}"


def half_split(rows, heads):
    """Undoes the order in which GGUF's llama files keep the rows of rotated heads."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def to_bf16(values):
    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    even = (bits >> 16) & 1
    return ((bits + 0x7FFF + even) >> 16).astype("<u2")


def read_tensors(reader, heads, kv_heads):
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            values = half_split(values, heads)
        if ".attn_k." in tensor.name:
            values = half_split(values, kv_heads)
        tensors[hf_name(tensor.name)] = to_bf16(values)
    return tensors


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            out.write(values.tobytes())


def make_config(reader, tied):
    read = lambda key, absent=None: value(reader, f"llama.{key}", absent)
    heads = read("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(value(reader, "tokenizer.ggml.tokens")),
        "hidden_size": read("embedding_length"),
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read("attention.head_count_kv", heads),
        "max_position_embeddings": read("context_length"),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "rope_theta": read("rope.freq_base", 10000.0),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value(reader, "tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16",
    }


def make_tokenizer(reader):
    tokens = value(reader, "tokenizer.ggml.tokens")
    types = value(reader, "tokenizer.ggml.token_type")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": tokens[i], "special": types[i] == CONTROL, **plain}
        for i in range(len(tokens))
        if types[i] in (CONTROL, USER_DEFINED)
    ]
    steps = PRE_TOKENIZERS[value(reader, "tokenizer.ggml.pre")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": value(reader, "tokenizer.ggml.merges"),
        },
    }


def make_tokenizer_config(reader):
    tokens = value(reader, "tokenizer.ggml.tokens")
    text = lambda key: None if value(reader, key) is None else tokens[value(reader, key)]
    return {
        "bos_token": text("tokenizer.ggml.bos_token_id"),
        "eos_token": text("tokenizer.ggml.eos_token_id"),
        "unk_token": text("tokenizer.ggml.unknown_token_id"),
        "add_bos_token": value(reader, "tokenizer.ggml.add_bos_token", False),
        "chat_template": value(reader, "tokenizer.chat_template"),
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader = gguf.GGUFReader(sys.argv[1])
    if value(reader, "general.architecture") != "llama":
        sys.exit("only the llama architecture is known here")
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(reader, all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors = read_tensors(reader, config["num_attention_heads"], config["num_key_value_heads"])
    write_safetensors(folder / "model.safetensors", tensors)
    files = {
        "config.json": config,
        "tokenizer.json": make_tokenizer(reader),
        "tokenizer_config.json": make_tokenizer_config(reader),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")


if __name__ == "__main__":
    main()
