"""From files to packed batches: load, layouts, render, truncate, mix, packing, collate, sources."""
