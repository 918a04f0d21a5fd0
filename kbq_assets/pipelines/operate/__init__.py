"""What an operator does: bootstrap, resume, reset, park, clean."""
