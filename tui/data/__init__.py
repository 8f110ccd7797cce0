"""What the screens ask of the registry: functions of a session, without textual, called by the database worker."""
