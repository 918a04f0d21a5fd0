"""Notices: notifies people of problems and news."""
