"""Optional features, one folder each. The spine imports none of them."""
