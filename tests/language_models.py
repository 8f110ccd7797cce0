"""Tiny pretrained language models as Hugging Face keeps them: config.json, model.safetensors, tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chessreg.encodings.prompts import TEMPLATES

VOCABULARY = 320


def write_tokenizer(path: Path, bos: str | None = "<s>", vocabulary: int = VOCABULARY) -> None:
    """A byte-level BPE with merges, as those of Llama 3 and GPT-NeoX; `bos` is put in front of every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*TEMPLATES.values(), *["pk"] * 50], trainer)
    if bos is not None:
        made.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, made.token_to_id(bos))]
        )
    made.save(str(path))


def hugging_face_model(architecture: str, vocabulary: int, context: int = 448) -> Any:
    """A causal model of 2 layers, d_model 32, with random weights: llama, gpt_neox or gpt2."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    names: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": context}
    if architecture != "gpt2":
        names = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 32}
        names["max_position_embeddings"] = context
    torch.manual_seed(0)
    special = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.3}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **names, **special)).eval()


def write_language_model(folder: Path, architecture: str = "llama", context: int = 448, spare: int = 0) -> Path:
    """The folder of such a model and its tokenizer; `spare` rows of its embedding belong to no token."""
    hugging_face_model(architecture, VOCABULARY + spare, context).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<s>"}))
    return folder
