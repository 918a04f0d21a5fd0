"""Google credentials, clients and secrets, shared by the Google adapters."""
