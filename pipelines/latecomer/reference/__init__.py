"""The oracles, tuple at a time or by brute force: short, slow and obviously right. Only tests import them."""
