"""Where inputs come from (folders, image lists, parquet, arrays) and where scores go (parquet)."""
