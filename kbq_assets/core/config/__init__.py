"""Settings: what each KBQ_* variable means and which values it takes."""
