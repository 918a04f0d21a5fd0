"""Loading: turns committed files into rows, with one load job per batch."""
