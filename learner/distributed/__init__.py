"""DeepSpeed engines and the ranks that run them."""
