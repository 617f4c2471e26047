"""The measurement of a node: what its decks need, its runs, what they say together, and the table."""
