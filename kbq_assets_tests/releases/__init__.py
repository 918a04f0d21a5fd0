"""Two releases of KBQ that work on one staging area and one warehouse."""
