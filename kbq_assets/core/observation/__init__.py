"""What is checked and counted about runs."""
