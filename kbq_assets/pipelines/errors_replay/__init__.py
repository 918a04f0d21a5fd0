"""Bad records that become rows after all."""
