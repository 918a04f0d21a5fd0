"""Reconciliation: checks that every record of the broker is in the warehouse once, or accounted for."""
