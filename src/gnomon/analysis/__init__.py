"""Cost accounting, by formula."""
