"""Read state -> plan -> act -> commit. Pipelines know ports, never adapters; the composition root joins them.

extract    positions of Kafka become staged, committed files
load       committed files become rows of the warehouse
clean      orphans and superseded done files
operate    accept-gap, reset, bootstrap, resume: the commands of an operator
reconcile  offsets of the broker against rows of the warehouse
status     where everything stands
"""
