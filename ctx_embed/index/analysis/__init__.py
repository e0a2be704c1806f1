"""What an index holds: verification, near-duplicates and topics."""
