"""`kbq doctor`: checks the environment of KBQ."""
