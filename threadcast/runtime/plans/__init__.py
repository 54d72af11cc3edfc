"""What plans are made from, made by, and stored in, and how they go with the cores that there are."""
