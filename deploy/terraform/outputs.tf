output "environment" {
  description = "KBQ's settings for this place."
  value = {
    KBQ_STAGING   = "gs://${google_storage_bucket.staging.name}/${var.prefix}"
    KBQ_WAREHOUSE = "bigquery://${var.project}?location=${var.location}${var.data_project == "" ? "" : "&datasets=${var.data_project}"}"
    KBQ_KMS_KEY   = var.kms_key
  }
}

output "accounts" {
  description = "E-mail addresses of the two service accounts."
  value       = { for name, account in google_service_account.role : name => account.email }
}
