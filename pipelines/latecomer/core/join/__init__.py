"""The join: control plane, retention policies, and the estimators of recall that they steer by."""
