"""Importing third-party checkpoints: one module per format, one registry, one verification for all.

To add a format, add a file to this package that registers an object with the interface `registry.ImportFormat`.
"""

import pkgutil

from chessreg import plugins
from chessreg.models.importers.huggingface import HuggingFaceFolder, check_folder
from chessreg.models.importers.registry import (
    FORMATS,
    Imported,
    ImportFormat,
    ImportReport,
    check_import,
    convert_checkpoint,
    register_format,
)
from chessreg.models.importers.source import NO_SETTINGS, UnrecordedSettings

__all__ = [
    "FORMATS",
    "NO_SETTINGS",
    "ImportFormat",
    "ImportReport",
    "Imported",
    "UnrecordedSettings",
    "check_folder",
    "check_import",
    "convert_checkpoint",
    "register_format",
]  # fmt: skip

register_format(HuggingFaceFolder())  # before the others, because it accepts any folder with a config.json
for _file in pkgutil.iter_modules(__path__):
    plugins.load_custom_module(f"{__name__}.{_file.name}")
