"""Arrays and files of chessreg: activations, content-addressed artifacts, fragments. Knows no SQL and no chess."""

from store.artifacts import StoredArtifact
from store.errors import AlreadyPublishedError, CorruptError, NotInStoreError, StoreError
from store.store import Store

__all__ = ["AlreadyPublishedError", "CorruptError", "NotInStoreError", "Store", "StoreError", "StoredArtifact"]
