"""How much ops that run at the same time slow each other down."""
