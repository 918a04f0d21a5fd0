"""The store in a bucket, against fake-gcs-server and a judge that responds like Cloud Storage."""
