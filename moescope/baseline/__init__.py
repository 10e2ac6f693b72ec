"""What an allocation can do before any model runs on it: products, collectives, copies, launches, and on what."""
