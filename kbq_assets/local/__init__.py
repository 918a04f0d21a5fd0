"""A broker and registry on this machine, and the demo. A production install imports none of it."""
