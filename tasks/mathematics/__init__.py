"""Final answers of mathematical problems."""
