"""The SQL registry: tables, transactions, migrations, and functions that read and write records."""
