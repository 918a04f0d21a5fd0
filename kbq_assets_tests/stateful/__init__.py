"""Hypothesis state machines over the real pipelines: shrunk counterexamples where the simulator gives seeds."""
