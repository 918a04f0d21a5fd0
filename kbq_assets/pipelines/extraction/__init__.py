"""Extraction: plan windows, run units, publish commits."""
