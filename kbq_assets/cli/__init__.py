"""``kbq``: thin commands over the pipelines."""
