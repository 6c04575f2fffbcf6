"""A small project of Temporal's usual shape, with its own worker, that uses Redrive by one line."""
