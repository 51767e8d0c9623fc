"""What stops the arm when this runtime cannot: another process, its orders, and the memory that both share."""
