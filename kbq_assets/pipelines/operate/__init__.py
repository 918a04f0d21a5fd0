"""The operator's commands: bootstrap, resume, reset, park, clean."""
