"""One file a schema revision; released ones are never edited."""
