"""Storage of chessreg: activations, content-addressed artifacts, and fragments. Independent of SQL and chess."""

from store.artifacts import StoredArtifact
from store.errors import AlreadyPublishedError, CorruptError, NotInStoreError, StoreError
from store.store import Store

__all__ = ["AlreadyPublishedError", "CorruptError", "NotInStoreError", "Store", "StoreError", "StoredArtifact"]
