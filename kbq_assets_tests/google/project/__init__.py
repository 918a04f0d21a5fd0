"""The suite for a real Google Cloud project: RUN_INTEGRATION_TESTS=true (docs/google-cloud.md)."""
