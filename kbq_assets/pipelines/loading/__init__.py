"""Loading: committed files become rows, one load job per batch."""
