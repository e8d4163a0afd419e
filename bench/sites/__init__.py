"""One file a product: brings it up in a folder of its own, says what it is, and takes it down."""
