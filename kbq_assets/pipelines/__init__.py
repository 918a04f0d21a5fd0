"""Read state -> plan -> act -> commit. Pipelines depend on ports, never on adapters; the composition root joins them.

extract    read Kafka offsets into staged, committed files
load       load committed files into warehouse tables
clean      delete orphans and superseded done files
operate    the operator's commands: accept-gap, reset, bootstrap, resume
reconcile  compare the broker's offsets with the warehouse's rows
status     report the state of every topic and table
"""
