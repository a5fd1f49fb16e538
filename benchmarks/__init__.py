"""Measurements of the real system; nothing else imports them."""
