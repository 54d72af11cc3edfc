"""What no schedule can beat, and what scheduling can gain at most."""
