"""The store: one folder with all data that is too large for SQL.

    store.json                     identifies the folder and the version of its layout
    artifacts/<aa>/<digest>/…      content-addressed files (artifacts.py)
    arrays/<id>/…                  immutable zarr groups of activations (arrays.py)
    fragments/incoming/            result rows not ingested yet (fragments.py)
    fragments/ingested/<run id>/   ingested fragments, from which a registry can be rebuilt or merged
    fragments/quarantine/          damaged fragments, each with the reason
    datasets/                      games as Parquet, one folder for each dataset
    runs/<run id>/                 scratch files, checkpoints and logs of long units
    corpora/<key>/                 training data as token ids, which can be made again (corpora.py)
    rehearsals/<tag>-<digest>/     registries and stores of unfinished rehearsals of papers
    tmp/                           staging: files that are not visible yet

Files are written in `tmp/`, synced, and renamed into place, so after a crash each is complete or absent.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from store import files
from store.artifacts import ArtifactStore, discard_lent
from store.errors import StoreError
from store.files import check_safe_name, convert_os_errors, make_folder, sync_path, write_synced

STORE_LAYOUT = 1


class Store(ArtifactStore):
    """An open store. `Store.create` creates one. `Store(root)` opens one and raises StoreError on failure."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        self.root = Path(root).absolute()
        self.read_only = read_only
        self.artifacts = self.root / "artifacts"
        self.arrays = self.root / "arrays"
        self.incoming = self.root / "fragments" / "incoming"
        self.ingested = self.root / "fragments" / "ingested"
        self.quarantine = self.root / "fragments" / "quarantine"
        self.datasets = self.root / "datasets"
        self.runs = self.root / "runs"
        self.corpora = self.root / "corpora"
        self.rehearsals = self.root / "rehearsals"  # made by the first rehearsal
        self.tmp = self.root / "tmp"
        self.lent_artifacts = {}
        weakref.finalize(self, discard_lent, self.lent_artifacts)
        self._check()

    @classmethod
    def create(cls, root: Path | str) -> Store:
        """Return the store at `root`, created if it does not exist. Several processes may call this concurrently."""
        root = Path(root).absolute()
        with convert_os_errors(f"make a store at {root}"):
            make_folder(root)
            if not (root / "store.json").exists():
                tmp = root / "tmp"
                make_folder(tmp)
                part_path = files.make_staging_path(tmp, "store")
                write_synced(part_path, json.dumps({"chessreg_store": STORE_LAYOUT}).encode() + b"\n")
                part_path.rename(root / "store.json")
                sync_path(root)
        return cls(root)

    @classmethod
    def open_existing(cls, root: Path | str) -> Store:
        """Return the existing store at `root`, read-only if it is not writable. Raises StoreError if it does not
        exist."""
        try:
            return cls(root)
        except StoreError as error:
            if not files.is_denied(error.__cause__):
                raise
            return cls(root, read_only=True)

    def _check(self) -> None:
        if not self.root.is_dir():
            reason = "is not a folder" if self.root.exists() else "does not exist"
            raise StoreError(f"the store {self.root} {reason}", "make one with `chessreg init`", exit_code=3)
        try:
            layout = files.read_json(self.root / "store.json")["chessreg_store"]
        except FileNotFoundError:
            raise StoreError(
                f"{self.root} is not a store: it has no store.json", "make one with `chessreg init`", exit_code=3
            ) from None
        except OSError as error:
            raise StoreError(f"cannot open the store {self.root}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"cannot open the store {self.root}: its store.json is damaged") from None
        if layout != STORE_LAYOUT:
            raise StoreError(
                f"the store {self.root} has layout {layout}; this version reads layout {STORE_LAYOUT}",
                "use the chessreg version that made it",
            )
        if not self.read_only:
            with convert_os_errors(f"write to the store {self.root}"):
                for folder in self.list_folders():
                    make_folder(folder)
                probe = files.make_staging_path(self.tmp, "probe")
                probe.touch()
                probe.unlink()

    def list_folders(self) -> tuple[Path, ...]:
        """Return every folder of the layout."""
        return (
            *(self.artifacts, self.arrays, self.incoming, self.ingested, self.quarantine),
            *(self.datasets, self.runs, self.corpora, self.tmp),
        )

    def run_folder(self, run_id: str) -> Path:
        """Return `runs/<run id>/`, created if missing, for scratch files, checkpoints and logs of a long unit."""
        self.require_writable()
        folder = self.runs / check_safe_name("run id", run_id)
        with convert_os_errors(f"make the folder of run {run_id}"):
            make_folder(folder)
        return folder

    def get_array_path(self, name: str) -> Path:
        """Return the folder of the group of activations named `name`. It need not exist. Raises StoreError for an
        invalid name."""
        return self.arrays / check_safe_name("the name of an array", name)

    @contextmanager
    def open_scratch(self, kind: str) -> Iterator[Path]:
        """Yield a folder in `tmp/` that is removed after the block. If the process is killed, `list_stale_staging`
        lists it."""
        self.require_writable()
        folder = files.make_staging_path(self.tmp, kind)
        try:
            folder.mkdir()  # inside, because Ctrl-C may follow immediately
            yield folder
        finally:
            files.discard_path(folder)

    def has_content(self, digest: str, array: str | None = None) -> bool:
        """Return whether an artifact, or the group of activations `array`, is in the store. No bytes are read.

        False for an invalid digest or name.
        """
        try:
            return self.exists(digest) if array is None else (self.get_array_path(array) / "zarr.json").is_file()
        except StoreError:
            return False

    def list_stale_staging(self, older_than: float = files.DAY_S) -> Sequence[files.StagedPath]:
        """Return the paths in `tmp/` left by processes that have ended (see files.list_stale)."""
        return files.list_stale(self.tmp, older_than)

    def clean_staging(self, older_than: float = files.DAY_S) -> Sequence[files.StagedPath]:
        """Remove the paths that `list_stale_staging` returns, and return them."""
        self.require_writable()
        stagings = files.list_stale(self.tmp, older_than)
        with convert_os_errors("clean the staging folder"):
            for staging in stagings:
                files.remove_staging(staging.path)
        return stagings
