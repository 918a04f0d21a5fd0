variable "project" {
  description = "Project of the bucket, the jobs and the service accounts."
  type        = string
}

variable "data_project" {
  description = "Project of the datasets, if it is another one (KBQ_WAREHOUSE=bigquery://PROJECT?datasets=DATA_PROJECT)."
  type        = string
  default     = ""
}

variable "location" {
  description = "BigQuery's location of datasets and jobs, such as EU or europe-west3."
  type        = string
}

variable "region" {
  description = "Region of the bucket: europe-west4 for EU, us-central1 for US, otherwise the datasets' own region."
  type        = string
}

variable "bucket" {
  description = "Name of the staging bucket."
  type        = string
}

variable "prefix" {
  description = "Prefix of KBQ_STAGING in the bucket."
  type        = string
  default     = "kbq"
}

variable "datasets" {
  description = "Datasets that KBQ loads."
  type        = set(string)
}

variable "kms_key" {
  description = "Cloud KMS key of bucket and datasets, in their location (KBQ_KMS_KEY), which the service agents of Cloud Storage and BigQuery may use already; empty: Google's own keys."
  type        = string
  default     = ""
}

variable "workload_identities" {
  description = "Kubernetes service accounts that act as the roles: { extract = \"namespace/name\", load = \"namespace/name\" }."
  type        = map(string)
  default     = {}
}

variable "notification_channels" {
  description = "Channels of the alerts; without one, alerts only show in the console."
  type        = list(string)
  default     = []
}

variable "billing_account" {
  description = "Billing account of the budget; empty: no budget."
  type        = string
  default     = ""
}

variable "monthly_budget" {
  description = "Monthly budget of the project in the account's currency."
  type        = number
  default     = 500
}
