"""The command line: one command a file, through the SDK only."""
