"""Notices: who is notified of failures and news."""
