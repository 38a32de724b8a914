"""Where inputs come from: folders, image lists, parquet, arrays."""
