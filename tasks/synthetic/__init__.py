"""Generated tasks that check every prefix exactly."""
