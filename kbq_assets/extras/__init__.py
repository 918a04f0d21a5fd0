"""Optional subjects, one folder each. The spine imports none of them."""
