"""Tables of nouns that packages bring: created by writing commands, not needed by reading ones."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Integer, Table, inspect

from chessreg.registry import brought
from chessreg.registry.database import Database
from chessreg.registry.tables import Base


@pytest.fixture
def glass() -> Iterator[Table]:
    """A table that is declared after the registry was made, as that of a package is."""
    table = Table("glass", Base.metadata, Column("id", Integer, primary_key=True))
    yield table
    Base.metadata.remove(table)


def test_a_table_is_made_once_and_reading_makes_none(database: Database, glass: Table) -> None:
    with database.read() as session:
        assert brought.find_missing_tables(session) == [glass]
    with database.read() as session:
        assert not inspect(session.connection()).has_table("glass")
    for missing in ([glass], []):
        with database.write() as session:
            assert brought.find_missing_tables(session) == missing
            brought.create_missing_tables(session)
            assert brought.has_table(session, glass)
    with database.read() as session:
        assert brought.has_table(session, glass)


def test_a_transaction_that_fails_leaves_no_table(database: Database, glass: Table) -> None:
    def fail() -> None:
        with database.write() as session:
            brought.create_missing_tables(session)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.read() as session:
        assert brought.find_missing_tables(session) == [glass]
