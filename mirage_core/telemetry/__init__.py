"""What a process tells its operators beside metrics: spans, and logs with the same ids."""
