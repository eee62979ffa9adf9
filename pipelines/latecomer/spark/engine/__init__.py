"""What every stage needs of Spark: the session and its settings, tables, columns, types, band joins."""
