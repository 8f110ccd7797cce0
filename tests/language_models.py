"""Write tiny models of every encoding with random weights.

Language models are Hugging Face folders with config.json, model.safetensors and tokenizer.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.encodings.prompts import TEMPLATES

if TYPE_CHECKING:
    from chessreg.models.adapters import Network
    from chessreg.session import Session

VOCABULARY = 320
LONG = 448  # tokens of the longest game of the tests' world, a little more


def write_tokenizer(path: Path, bos: str | None = "<s>", vocabulary: int = VOCABULARY) -> None:
    """Write a byte-level BPE with merges, like the tokenizers of Llama 3 and GPT-NeoX, that prepends `bos` to texts."""
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
    """Return a causal model of 2 layers, d_model 32, with random weights: llama, gpt_neox, qwen2 or gpt2."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    names: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": context}
    if architecture != "gpt2":
        names = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 32}
        names["max_position_embeddings"] = context
    if architecture == "qwen2":
        names["num_key_value_heads"] = 2
    torch.manual_seed(0)
    special = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.3}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **names, **special)).eval()


def write_language_model(folder: Path, architecture: str = "llama", context: int = 448, spare: int = 0) -> Path:
    """Write a model and its tokenizer to `folder` and return it. `spare` embedding rows do not belong to a token."""
    hugging_face_model(architecture, VOCABULARY + spare, context).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<s>"}))
    return folder


def network(adapter: str, vocabulary: int) -> Network:
    """Return a network of 2 layers, d_model 32, with random weights."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

    from chessreg.models.adapters.bridge import BridgedModel
    from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.adapters.llama import wrap_hugging_face
    from chessreg.models.adapters.maia2 import Maia2, Maia2Config

    if adapter == "maia-2":
        return Maia2(Maia2Config(2, 2, 32, 16, 32, 4, 8, 1, 4)).make_untrained(0)
    if adapter == "gpt2":
        return make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=LONG, vocab_size=vocabulary), 0)
    if adapter.endswith("fen-encoder"):
        return FenEncoder(FenConfig(2, 2, 32, adapter.partition("-")[0])).make_untrained(0)  # type: ignore[arg-type]
    torch.manual_seed(0)
    shape = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "max_position_embeddings": LONG}
    if adapter == "llama":
        return wrap_hugging_face(LlamaForCausalLM(LlamaConfig(**shape)).eval())
    return BridgedModel(GPTNeoXForCausalLM(GPTNeoXConfig(**shape)).eval())


def bring_in(session: Session, name: str, adapter: str, folder: Path) -> str:
    """Import a checkpoint with random weights and return its name. Encoding `prompt` makes a Hugging Face folder."""
    from chessreg.encodings import get_encoding
    from chessreg.encodings.prompts import make_prompt_encoding
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    if name == "prompt" and not adapter.endswith("fen-encoder"):
        write_language_model(folder, adapter, LONG)
    else:
        made = network(adapter, get_encoding("fen-77" if name == "prompt" else name).size)
        save_checkpoint(made, folder, CheckpointInfo.from_network(made, name))
    if name == "prompt" and adapter.endswith("fen-encoder"):
        write_tokenizer(folder / "tokenizer.json")
    written = make_prompt_encoding(folder, end="</s>") if name == "prompt" else name
    import_checkpoint(session.database, session.store, folder, name=folder.name, encoding=written)
    return folder.name
