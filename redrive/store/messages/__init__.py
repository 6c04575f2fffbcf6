"""Messages of the retry scheduler: waiting, and dead."""
