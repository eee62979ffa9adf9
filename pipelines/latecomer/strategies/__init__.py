"""Turn the strategy that a query names into the policies that carry it out."""
