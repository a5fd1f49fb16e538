"""A client in another language against ``mirage up``: ``make real-client`` (needs node and npm)."""
