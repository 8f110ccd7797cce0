"""Arrays and files of chessreg: activations, content-addressed artefacts, fragments. Knows no SQL and no chess."""

from store.artefacts import Artefact
from store.errors import AlreadyPublishedError, CorruptError, NotInStoreError, StoreError
from store.store import Store

__all__ = ["AlreadyPublishedError", "Artefact", "CorruptError", "NotInStoreError", "Store", "StoreError"]
