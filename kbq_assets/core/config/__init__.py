"""Settings: the KBQ_* variables, their meanings and values."""
