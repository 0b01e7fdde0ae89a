"""What people look at: tables, a run as it happens, and a page of what it came to."""
