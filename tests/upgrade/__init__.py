"""Earlier versions of what travels and is kept, frozen, so that today's program is held against them."""
