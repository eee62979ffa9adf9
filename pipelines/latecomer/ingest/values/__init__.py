"""Text to typed values, in Arrow arrays: times, numbers and other types, and which type a column of texts has.

Nothing here reads a file or knows of Spark. Every function is exact about what its grammar says: a text that the
grammar does not name has no value, however a lenient parser would read it.
"""
