"""States of texts that grow, of which only the new part is read."""
