"""Records: validation, selection, event times, rejects."""
