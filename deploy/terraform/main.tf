# Google Cloud for KBQ, as docs/google-cloud.md sets it up by hand: a regional bucket, datasets without expiration, and two
# service accounts with exactly the permissions of kbq_assets/core/config/google_permissions.py (a test compares).

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.33"
    }
  }
}

locals {
  data_project = var.data_project == "" ? var.project : var.data_project

  look_permissions  = ["storage.buckets.get", "storage.buckets.getIamPolicy"]
  write_permissions = ["storage.objects.create", "storage.objects.delete"]

  # Folders in which a role creates, replaces or deletes objects.
  folders = {
    extract = ["backlog", "backup", "commits", "costs", "done", "erasures", "manifests", "metrics", "placements", "replayed", "replays", "schemas", "shapes", "staging"]
    load    = ["backlog", "backup", "completeness", "done", "filebatches", "manifests", "metrics", "notices", "placements", "quarantine", "replayed", "schemas", "staging", "tables"]
  }

  objects = "projects/_/buckets/${var.bucket}/objects/${var.prefix}"
}

resource "google_project_service" "apis" {
  for_each = toset(concat(
    ["bigquery.googleapis.com", "cloudresourcemanager.googleapis.com", "iam.googleapis.com", "iamcredentials.googleapis.com"],
    ["monitoring.googleapis.com", "storage.googleapis.com"],
    var.billing_account == "" ? [] : ["billingbudgets.googleapis.com"],
  ))
  project            = var.project
  service            = each.key
  disable_on_destroy = false
}

# The staging area ---------------------------------------------------------------------------------------------------

resource "google_storage_bucket" "staging" {
  project                     = var.project
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # KBQ deletes what is loaded; soft delete would bill it, and each replaced state, for another week.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  dynamic "encryption" {
    for_each = var.kms_key == "" ? [] : [var.kms_key]
    content {
      default_kms_key_name = encryption.value
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.apis]
}

# Datasets -----------------------------------------------------------------------------------------------------------

# No default expiration: BigQuery would drop old rows as they are loaded.
resource "google_bigquery_dataset" "loaded" {
  for_each   = var.datasets
  project    = local.data_project
  dataset_id = each.key
  location   = var.location

  dynamic "default_encryption_configuration" {
    for_each = var.kms_key == "" ? [] : [var.kms_key]
    content {
      kms_key_name = default_encryption_configuration.value
    }
  }

  depends_on = [google_project_service.apis]
}

# Accounts and roles -------------------------------------------------------------------------------------------------

resource "google_service_account" "role" {
  for_each     = local.folders
  project      = var.project
  account_id   = "kbq-${each.key}"
  display_name = "KBQ ${each.key}"

  depends_on = [google_project_service.apis]
}

resource "google_project_iam_custom_role" "look" {
  project     = var.project
  role_id     = "kbqStagingLook"
  title       = "KBQ: see the staging bucket's settings"
  permissions = local.look_permissions

  depends_on = [google_project_service.apis]
}

resource "google_project_iam_custom_role" "write" {
  project     = var.project
  role_id     = "kbqStagingWrite"
  title       = "KBQ: write to the staging bucket"
  permissions = local.write_permissions

  depends_on = [google_project_service.apis]
}

resource "google_storage_bucket_iam_member" "look" {
  for_each = google_service_account.role
  bucket   = google_storage_bucket.staging.name
  role     = google_project_iam_custom_role.look.id
  member   = each.value.member
}

resource "google_storage_bucket_iam_member" "read" {
  for_each = google_service_account.role
  bucket   = google_storage_bucket.staging.name
  role     = "roles/storage.objectViewer"
  member   = each.value.member
}

resource "google_storage_bucket_iam_member" "write" {
  for_each = google_service_account.role
  bucket   = google_storage_bucket.staging.name
  role     = google_project_iam_custom_role.write.id
  member   = each.value.member

  condition {
    title      = "kbq-${each.key}"
    expression = join(" || ", [for folder in local.folders[each.key] : "resource.name.startsWith(\"${local.objects}/${folder}/\")"])
  }
}

resource "google_project_iam_member" "jobs" {
  project = var.project
  role    = "roles/bigquery.jobUser"
  member  = google_service_account.role["load"].member
}

resource "google_bigquery_dataset_iam_member" "load" {
  for_each   = google_bigquery_dataset.loaded
  project    = local.data_project
  dataset_id = each.value.dataset_id
  role       = "roles/bigquery.dataEditor"
  member     = google_service_account.role["load"].member
}

resource "google_service_account_iam_member" "workload" {
  for_each           = var.workload_identities
  service_account_id = google_service_account.role[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${each.value}]"
}
