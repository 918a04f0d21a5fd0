"""The real world behind the ports: one SDK per module or package."""
