"""One file for each release that changed the schema; released ones are never edited."""
