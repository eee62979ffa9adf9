"""Windows of every kind: the grid, arrivals, slack policies, observation, and the decision that a window closes."""
