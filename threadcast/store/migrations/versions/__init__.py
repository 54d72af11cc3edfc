"""One file for each schema revision; released ones are never edited."""
