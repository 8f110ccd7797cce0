"""Reading other people's checkpoints: one module a format, one registry, one verification for all."""

from chessreg.models.importers.huggingface import HuggingFaceFolder
from chessreg.models.importers.nanogpt import NanoGPTFile
from chessreg.models.importers.registry import (
    FORMATS,
    Imported,
    ImportFormat,
    ImportReport,
    check,
    import_checkpoint,
    register,
)
from chessreg.models.importers.transformer_lens import TransformerLensFile

__all__ = ["FORMATS", "ImportFormat", "ImportReport", "Imported", "check", "import_checkpoint", "register"]

register(NanoGPTFile())
register(TransformerLensFile())
register(HuggingFaceFolder())
