"""Decides what an extraction reads: backlog, plan, units, turns, throttle, restarts, cost."""
