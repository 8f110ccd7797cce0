"""Adapters: one file per architecture, registered by name. To add one, add a file to this package that registers
itself."""

import pkgutil

from chessreg import plugins
from chessreg.models.adapters.base import ADAPTERS, Network
from chessreg.models.adapters.bridge import BridgedModel
from chessreg.models.adapters.fen_encoder import FenEncoder
from chessreg.models.adapters.gpt2 import GPT2
from chessreg.models.adapters.llama import Llama

__all__ = ["ADAPTERS", "GPT2", "BridgedModel", "FenEncoder", "Llama", "Network", "get_adapter"]


for _file in pkgutil.iter_modules(__path__):
    plugins.load_custom_module(f"{__name__}.{_file.name}")


def get_adapter(architecture: str) -> type[Network]:
    """Return the adapter of an architecture; `BridgedModel` for Hugging Face architectures without one."""
    if architecture in ADAPTERS:
        return ADAPTERS[architecture]
    return BridgedModel
