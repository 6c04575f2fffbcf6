"""Taking secrets out of texts and documents before they are stored, logged, shown or sent. Pure."""
