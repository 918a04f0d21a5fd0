"""The suite for a real Google Cloud project: RUN_INTEGRATION_TESTS=true (docs/google-cloud.md).

It runs the contracts of store and warehouse, every type, expirations, partition filters, thousands of dates, JSON
columns, odd headers, loads that die at each of their steps, two loaders at once, and each kind of statement in its
transaction, which the local server cannot run for the MERGE of ``load=upsert``. Not in it: the effect of policy tags,
keys of Cloud KMS, and quotas.

- ``KBQ_TEST_GCP_PROJECT``: a project only for this suite, which lists all datasets; it needs billing
- ``KBQ_TEST_GCP_BUCKET``: a bucket for it
- ``KBQ_TEST_GCP_LOCATION``: the bucket's and the datasets' location (US)
- ``KBQ_TEST_GCP_POLICY_TAGS``: two policy tags of a taxonomy in that location, separated by a comma; without them,
  columns get no tags
- ``KBQ_TEST_GCP_STAGING``: ``gs://bucket/prefix`` of the Terraform module. With it, the identities in
  ``KBQ_TEST_GCP_EXTRACT`` and ``KBQ_TEST_GCP_LOAD`` (such as ``impersonate:ACCOUNT``) must be able to write in their
  own folders only

It uses the Application Default Credentials, Google's own ``GOOGLE_APPLICATION_CREDENTIALS`` for a service account's
key, and ``KBQ_LOAD_CREDENTIALS``. Its datasets and objects begin with ``kbq_test_`` and the hour in which the run
began; a run removes them, and those of killed runs over six hours old. A query that would read over 1 GiB fails.
"""
