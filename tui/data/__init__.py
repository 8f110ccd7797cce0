"""What the screens ask of the registry: plain functions of a session, without textual, called by the desk's threads."""
