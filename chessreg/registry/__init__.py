"""The SQL registry: tables, sessions, migrations, the record API."""
