# Alerts on metrics of `kbq serve` in Managed Service for Prometheus, and a budget. deploy/prometheus/alerts.yaml has more.

locals {
  alerts = {
    "KBQ: no service is scraped"            = "absent(kbq_up)"
    "KBQ: nothing was loaded for two hours" = "time() - kbq_last_success_timestamp_seconds{kind=\"loading\"} > 7200 and on(instance) min_over_time(kbq_loadable_rows[2h]) > 0"
    "KBQ: a table is parked"                = "kbq_table_parked > 0"
    "KBQ: partitions are stopped"           = "sum by (reason) (kbq_stopped_partitions) > 0"
    "KBQ: backups are stopped"              = "sum by (reason) (kbq_stopped_backups) > 0"
    "KBQ: a daily quota is nearly used"     = "kbq_table_jobs_used / on(instance) group_left() kbq_table_jobs_limit > 0.9"
  }
}

resource "google_monitoring_alert_policy" "kbq" {
  for_each              = local.alerts
  project               = var.project
  display_name          = each.key
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = each.key
    condition_prometheus_query_language {
      query               = each.value
      duration            = "600s"
      evaluation_interval = "60s"
      # The metrics exist only after the first scrape.
      disable_metric_validation = true
    }
  }

  documentation {
    content = "`kbq status` names what waits, and the command that resumes it."
  }

  depends_on = [google_project_service.apis]
}

data "google_project" "kbq" {
  project_id = var.project

  depends_on = [google_project_service.apis]
}

resource "google_billing_budget" "kbq" {
  count           = var.billing_account == "" ? 0 : 1
  billing_account = var.billing_account
  display_name    = "KBQ in ${var.project}"

  budget_filter {
    projects = ["projects/${data.google_project.kbq.number}"]
  }

  amount {
    specified_amount {
      units = tostring(var.monthly_budget)
    }
  }

  threshold_rules {
    threshold_percent = 0.5
  }

  threshold_rules {
    threshold_percent = 1.0
  }

  depends_on = [google_project_service.apis]
}
