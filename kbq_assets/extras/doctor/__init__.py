"""`kbq doctor`: checks of the environment around KBQ."""
