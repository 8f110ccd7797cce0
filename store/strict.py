"""A zarr store that raises where a chunk is missing: zarr 3.1 reads it as zeros and says nothing."""

from __future__ import annotations

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, WrapperStore

from store.errors import CorruptError


class Strict(WrapperStore[LocalStore]):
    """Passes everything on; a key that is no metadata and answers nothing raises CorruptError naming it."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await self._store.get(key, prototype, byte_range)
        if value is None and not key.endswith("zarr.json"):
            raise CorruptError(f"chunk {key} of array {self._store.root.name} is missing")
        return value
