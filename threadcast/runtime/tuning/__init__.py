"""Which way runs a call fastest: a pure state machine that decides, and what carries out its decisions."""
